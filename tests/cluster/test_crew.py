import itertools

import pytest

from ptxgym.cli import clustering
from ptxgym.cluster.crew import HIRE_PAUSE_MOST_S, HOPELESS, QUARANTINE_S, STRIKES
from ptxgym.cluster.protocol import Kind, WorkerState
from ptxgym.cluster.scheduler import LINGER_S
from ptxgym.cluster.work import HandoverLost, Role
from ptxgym.errors import DeadlineExceeded, InfrastructureError, UsageError
from ptxgym.verdict import Status, Verdict
from tests.cluster.fakes import BUILDER, CPU, GPU, Bench, one_worker, verdict


def test_an_idle_worker_that_dies_is_replaced_before_it_fails_anything():
    bench, worker = one_worker(retries=0)
    worker.die("out of memory")
    bench.settle()
    ticket = bench.ask("a")
    assert worker.steps == [] and worker.killed
    (fresh,) = bench.staff()
    fresh.end("a", verdict("a"))
    bench.settle()
    assert ticket.result(0).message == "a"


def test_workers_that_cannot_start_are_tried_again_ever_more_seldom():
    bench = Bench([CPU])
    starts = []
    for _ in range(8):
        while not bench.hires:
            bench.wait(0.5)
        starts.append(bench.now)
        bench.hires.pop()[1].set_exception(InfrastructureError("no room on the node"))
        bench.settle()
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert gaps == sorted(gaps) and gaps[0] <= 1 and gaps[-1] == HIRE_PAUSE_MOST_S
    late = bench.ask("a", deadline_s=5)
    bench.wait(6)
    with pytest.raises(DeadlineExceeded, match="cpu 0: no room on the node"):
        late.result(0)


def test_nobody_waits_for_workers_that_fail_to_start_again_and_again():
    bench = Bench([CPU, BUILDER])
    for _ in range(HOPELESS):
        assert not bench.scheduler.hopeless()
        while len(bench.hires) < 2:
            bench.wait(0.5)
        for role, hire in bench.hires:
            hire.set_exception(InfrastructureError("no compiler" if role is CPU else "no room"))
        bench.hires.clear()
        bench.settle()
    assert bench.scheduler.hopeless()
    assert bench.scheduler.troubles() == "cpu 0: no compiler; build 0: no room"
    bench.scheduler.awaited(BUILDER, "waits for room")
    assert bench.scheduler.troubles() == "cpu 0: no compiler; build 0: waits for room"
    assert bench.scheduler.status().missing == bench.scheduler.troubles()
    while len(bench.hires) < 2:
        bench.wait(0.5)
    bench.staff()
    assert not bench.scheduler.hopeless() and bench.scheduler.troubles() == ""


def test_a_trouble_of_many_is_told_once():
    roles = [Role(f"cpu {number}", CPU.kinds) for number in range(5)]
    bench = Bench(roles)
    for _, hire in bench.hires:
        hire.set_exception(InfrastructureError("no compiler"))
    bench.hires.clear()
    bench.settle()
    assert bench.scheduler.troubles() == "cpu 0, cpu 1, cpu 2 and 2 others: no compiler"


def test_a_fleet_may_grow():
    bench, worker = one_worker()
    tickets = [bench.ask("a"), bench.ask("b")]
    assert worker.texts == ["a"]
    bench.scheduler.enlist([Role("cpu 1", CPU.kinds)])
    bench.settle()
    (fresh,) = bench.staff()
    assert fresh.texts == ["b"] and bench.scheduler.status().wanted[Kind.BUILD] == 2
    for each in (worker, fresh):
        each.end(each.texts[0], verdict(each.texts[0]))
    bench.settle()
    assert all(ticket.done() for ticket in tickets)


def test_a_role_that_can_never_be_filled_fails_what_needs_it():
    bench = Bench([BUILDER, GPU])
    builder_hire, gpu_hire = bench.hires
    measured, emulated = bench.ask("a", last=Kind.MEASURE), bench.ask("b")
    gpu_hire[1].set_exception(UsageError("no such GPU"))
    bench.settle()
    with pytest.raises(UsageError, match="no such GPU"):
        measured.result(0)
    assert builder_hire[0] is BUILDER and emulated.done()  # nobody emulates in this fleet either


@pytest.mark.parametrize("error", [UsageError("no GPU here"), RuntimeError("no CUDA-capable device is detected")])
def test_a_role_that_was_filled_once_is_hired_for_again_whatever_its_next_worker_fails_with(error):
    bench = Bench([BUILDER, GPU])
    builder, gpu = bench.staff()
    gpu.die("the GPU fell off the bus")
    bench.settle()
    ticket = bench.ask("a", last=Kind.MEASURE)
    builder.end("a")
    bench.settle()
    for _ in range(3):
        bench.hires.pop()[1].set_exception(error)
        bench.settle()
        assert not ticket.done() and bench.scheduler.status().missing == f"H200 0: {error}"
        bench.wait(HIRE_PAUSE_MOST_S)
    (fresh,) = bench.staff()
    fresh.probes[0].set_result(None)
    bench.settle()
    fresh.end("a")
    bench.settle()
    assert ticket.result(0).message == "a"


def without_a_gpu(*asked, **limits):
    """A builder at work, askers for measurements, and a GPU's role that turns out never to be filled."""
    bench = Bench([BUILDER, GPU], **limits)
    _, (_, gpu_hire) = bench.hires
    bench.hires = bench.hires[:1]
    (builder,) = bench.staff()
    tickets = [bench.ask(text, last=Kind.MEASURE) for text in asked]
    gpu_hire.set_exception(UsageError("no such GPU"))
    bench.settle()
    return bench, builder, tickets


@pytest.mark.parametrize(
    "outcome",
    [None, verdict("a", Status.COMPILE_ERROR), InfrastructureError("disk"), HandoverLost("gone"), UsageError("other")],
    ids=lambda outcome: type(outcome).__name__,
)
def test_a_build_in_work_for_a_role_that_can_never_be_filled_ends_in_peace(outcome):
    bench, builder, (measured,) = without_a_gpu("a")
    with pytest.raises(UsageError, match="no such GPU"):
        measured.result(0)
    assert builder.texts == ["a"] and not builder.killed
    builder.end("a", outcome)
    bench.settle()
    assert bench.scheduler.status().waiting[Kind.BUILD] == 0 and not builder.killed
    bench.wait(60)
    assert not builder.killed and list(bench.memory) == (["a"] if isinstance(outcome, Verdict) else [])


def test_a_build_in_work_for_a_role_that_can_never_be_filled_does_not_hold_up_its_builder():
    bench, builder, _ = without_a_gpu("a")
    bench.wait(LINGER_S[Kind.BUILD])
    assert builder.killed


def test_who_asks_for_what_no_worker_will_ever_do_is_refused_at_once():
    bench, builder, (_, lobby) = without_a_gpu("a", "in the lobby", capacity=1)
    with pytest.raises(UsageError, match="no such GPU"):
        lobby.result(0)
    for text in ("a", "b"):  # in work still, though nobody waits for it; and new
        with pytest.raises(UsageError, match="no such GPU"):
            bench.ask(text, last=Kind.MEASURE).result(0)
    for other in (bench.ask("c"), bench.ask("d", last=Kind.MEASURE, arch="b200")):  # nor was anybody hired for these
        with pytest.raises(UsageError, match=r"no worker of this fleet does step (emulate for h100|measure for b200)"):
            other.result(0)
    bench.memory["e"] = verdict("e")
    assert bench.ask("e", last=Kind.MEASURE).result(0).message == "e"  # what is known is told
    builder.end("a", verdict("a", Status.COMPILE_ERROR))
    bench.settle()
    bench.scheduler.enlist([CPU])
    emulated = bench.ask("f")  # the control: once there will be somebody
    assert not emulated.done() and builder.texts == ["f"]


def test_a_gpu_takes_nothing_before_it_was_probed_and_is_quarantined_while_it_is_not_well():
    bench = Bench([BUILDER, GPU])
    builder, gpu = bench.staff()
    ticket = bench.ask("a", last=Kind.MEASURE)
    builder.end("a")
    bench.settle()
    assert gpu.texts == []
    gpu.probes[0].set_exception(InfrastructureError("Xid 79"))
    bench.settle()
    (status,) = [one for one in bench.scheduler.status().workers if Kind.MEASURE in one.kinds]
    assert status.state is WorkerState.QUARANTINED and status.trouble == "Xid 79" and gpu.texts == []
    bench.wait(QUARANTINE_S)
    gpu.probes[1].set_exception(InfrastructureError("Xid 79"))
    bench.settle()
    bench.wait(QUARANTINE_S)
    assert len(gpu.probes) == 2  # the second time lasts longer
    bench.wait(QUARANTINE_S)
    gpu.probes[2].set_result(None)
    bench.settle()
    assert gpu.texts == ["a"] and not ticket.done() and bench.counters["quarantines"] == 2


def test_a_gpu_on_which_all_fails_is_quarantined_even_if_it_seems_well():
    bench = Bench([BUILDER, GPU], retries=10)
    builder, gpu = bench.staff()
    gpu.probes[0].set_result(None)
    bench.ask("a", last=Kind.MEASURE)
    builder.end("a")
    bench.settle()
    for strike in range(STRIKES):
        gpu.end("a", InfrastructureError("launch failed"))
        bench.settle()
        gpu.probes[-1].set_result(None)
        bench.settle()
        bench.wait(30)
        assert (gpu.texts == []) == (strike == STRIKES - 1)


def test_a_cpu_worker_on_which_all_fails_is_replaced():
    bench, worker = one_worker(retries=10)
    bench.ask("a")
    for _ in range(STRIKES):
        worker.end("a", InfrastructureError("sandbox"))
        bench.settle()
        bench.wait(10)
    assert worker.killed and len(bench.hires) == 1


@pytest.mark.parametrize("left", [False, True])
def test_others_aboard_a_cpu_worker_that_is_replaced_begin_again_unless_nobody_waits(left):
    bench = Bench([Role("cpu 0", CPU.kinds, slots=2)], retries=10)
    (worker,) = bench.staff()
    other = bench.ask("other")
    bench.ask("a")
    if left:
        other.cancel()
        bench.settle()
    for strike in range(STRIKES):
        assert worker.texts == (["other", "a"] if strike == 0 else worker.texts)
        worker.end("a", InfrastructureError("sandbox"))
        bench.settle()
        if strike < STRIKES - 1:
            bench.wait(1.0 if strike else 0.5)
    assert worker.killed and bench.counters.get("displaced", 0) == (0 if left else 1)
    bench.wait(10)
    (fresh,) = bench.staff()
    assert fresh.texts == (["a"] if left else ["other", "a"])


def test_a_worker_that_comes_up_after_the_end_is_ended():
    bench = Bench([CPU])
    bench.scheduler.fail_all(InfrastructureError("closed"))
    (worker,) = bench.staff()
    assert worker.killed


def test_busy_time_counts_while_there_is_work():
    bench, worker = one_worker()
    bench.wait(5)
    bench.ask("a")
    bench.wait(3)
    worker.end("a", verdict("a"))
    bench.settle()
    bench.wait(2)
    (status,) = bench.scheduler.status().workers
    assert (status.busy_s, status.age_s, status.done) == (3.0, 10.0, 1)


def shown(bench, capsys):
    """What `ptxgym cluster status` says below its table."""
    clustering._show("one", 0.0, bench.scheduler.status())
    said = capsys.readouterr().out.split("\n")
    return [line for line in said if "starting" in line or "missing" in line]


def test_workers_that_come_up_are_starting_not_missing(capsys):
    bench = Bench([CPU, BUILDER])
    assert bench.scheduler.status().starting == {Kind.BUILD: 2, Kind.EMULATE: 1, Kind.MEASURE: 0}
    assert shown(bench, capsys) == ["2 of 2 build workers are starting", "1 of 1 emulate workers are starting"]
    late = bench.ask("a", deadline_s=5)
    bench.wait(6)
    with pytest.raises(DeadlineExceeded, match="step build, whose workers are still starting"):
        late.result(0)
    bench.staff()
    assert not any(bench.scheduler.status().starting.values()) and shown(bench, capsys) == []


def test_workers_that_were_tried_in_vain_or_have_no_room_are_missing(capsys):
    bench = Bench([CPU, BUILDER])
    (_, cpu), _ = bench.hires
    cpu.set_exception(InfrastructureError("no compiler"))
    bench.settle()
    assert shown(bench, capsys) == [
        "missing: cpu 0: no compiler",
        "1 of 2 build workers are starting",
        "1 of 2 build workers are missing",
        "1 of 1 emulate workers are missing",
    ]
    bench.wait(1)  # it is tried again
    bench.scheduler.awaited(BUILDER, "waits for room")
    assert not any(bench.scheduler.status().starting.values())
    assert shown(bench, capsys)[1:] == ["2 of 2 build workers are missing", "1 of 1 emulate workers are missing"]


def test_a_worker_whose_room_has_come_is_starting(capsys):
    bench = Bench([BUILDER])
    bench.scheduler.awaited(BUILDER, "waits for room")
    assert shown(bench, capsys) == ["missing: build 0: waits for room", "1 of 1 build workers are missing"]
    bench.scheduler.awaited(BUILDER, "")
    assert shown(bench, capsys) == ["1 of 1 build workers are starting"]


def test_a_hire_that_waited_in_vain_is_missing_for_why_it_failed(capsys):
    bench = Bench([BUILDER])
    bench.scheduler.awaited(BUILDER, "waits for room")
    bench.hires.pop()[1].set_exception(InfrastructureError("no compiler"))
    bench.settle()
    bench.wait(1)  # it is tried again, and has room at once
    bench.scheduler.awaited(BUILDER, "")
    assert shown(bench, capsys) == ["missing: build 0: no compiler", "1 of 1 build workers are missing"]


def test_a_worker_that_ended_is_started_again(capsys):
    bench, worker = one_worker()
    worker.die("out of memory")
    bench.settle()
    assert bench.scheduler.status().starting[Kind.BUILD] == 1
    assert shown(bench, capsys) == ["1 of 1 build workers are starting", "1 of 1 emulate workers are starting"]
    late = bench.ask("a", deadline_s=5)
    bench.wait(6)
    with pytest.raises(DeadlineExceeded, match=r"step build, whose workers are still starting\. Nothing"):
        late.result(0)


def test_a_worker_that_ends_again_and_again_is_missing_between_its_starts(capsys):
    bench, worker = one_worker()
    worker.die("out of memory")
    bench.settle()
    bench.staff()[0].die("out of memory")
    bench.settle()
    assert not bench.hires and shown(bench, capsys)[0] == "missing: cpu 0: out of memory"
    bench.wait(1)
    assert len(bench.hires) == 1 and shown(bench, capsys)[0] == "1 of 1 build workers are starting"


def test_who_is_late_learns_of_workers_that_start_and_of_those_that_are_missing():
    bench = Bench([CPU, BUILDER])
    bench.scheduler.awaited(BUILDER, "waits for room")
    late = bench.ask("a", deadline_s=5)
    bench.wait(6)
    said = "step build, whose workers are still starting; workers are missing: build 0: waits for room. Nothing"
    with pytest.raises(DeadlineExceeded, match=said):
        late.result(0)
