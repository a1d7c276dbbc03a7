from concurrent.futures import CancelledError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgym.cluster.crew import HIRE_PAUSE_MOST_S
from ptxgym.cluster.protocol import Kind
from ptxgym.cluster.scheduler import LINGER_S
from ptxgym.cluster.work import HandoverLost
from ptxgym.errors import DeadlineExceeded, InfrastructureError, Overloaded, UsageError
from ptxgym.verdict import Status
from tests.cluster.fakes import BOTH, BUILDER, CPU, GPU, Bench, Role, one_worker, verdict


def test_an_evaluation_is_built_then_run_on_what_the_build_left():
    bench, worker = one_worker()
    ticket = bench.ask("a")
    assert worker.texts == ["a"] and worker.steps[0][0].kind is Kind.BUILD and worker.steps[0][0].handover is None
    worker.end("a")
    bench.settle()
    assert worker.steps[1][0].kind is Kind.EMULATE and worker.steps[1][0].handover == "build of a"
    assert not ticket.done()
    worker.end("a")
    bench.settle()
    assert ticket.result().message == "a" and bench.memory["a"] == ticket.result()
    assert bench.counters == {"hired": 1, "asked": 1, "steps": 2, "evaluated": 1}


def test_a_text_that_does_not_compile_ends_with_its_build():
    bench, worker = one_worker()
    ticket = bench.ask("a")
    worker.end("a", verdict("a", Status.COMPILE_ERROR))
    bench.settle()
    assert ticket.result().status is Status.COMPILE_ERROR and len(worker.steps) == 1


def test_equal_work_is_done_once_in_flight_and_after():
    bench, worker = one_worker()
    first, second = bench.ask("a"), bench.ask("a")
    worker.end("a")
    bench.settle()
    third = bench.ask("a")
    worker.end("a")
    bench.settle()
    fourth = bench.ask("a")
    assert {ticket.result().message for ticket in (first, second, third, fourth)} == {"a"}
    assert [step.kind for step, _ in worker.steps] == [Kind.BUILD, Kind.EMULATE]
    assert bench.counters == {"hired": 1, "asked": 4, "joined": 2, "remembered": 1, "steps": 2, "evaluated": 1}
    bench.ask("b")
    assert worker.texts == ["b"]  # the control: other work is done


def test_two_evaluations_of_one_text_share_its_build():
    bench = Bench([Role("cpu 0", BOTH), Role("cpu 1", BOTH)])
    one, other = bench.staff()
    tickets = [bench.ask("a", key="on workload 1"), bench.ask("a", key="on workload 2")]
    assert one.texts == ["a"] and other.texts == []  # the second waits for the build, though a worker is free
    one.end("a")
    bench.settle()
    assert one.texts == other.texts == ["a"]
    for worker in (one, other):
        assert worker.steps[-1][0].handover == "build of a"
        worker.end("a")
    bench.settle()
    assert all(ticket.done() for ticket in tickets)


def test_started_episodes_go_first_then_what_is_half_done():
    bench, worker = one_worker()
    bench.ask("new 1")
    bench.ask("new 2")
    bench.ask("begun", started=True)
    worker.end("new 1")
    bench.settle()
    assert worker.texts == ["begun"]
    worker.end("begun")
    bench.settle()
    assert worker.texts == ["begun"]
    worker.end("begun")
    bench.settle()
    assert worker.texts == ["new 1"] and worker.steps[-1][0].kind is Kind.EMULATE


def test_builds_for_a_gpu_go_before_the_emulator_and_stop_when_enough_is_ready():
    bench = Bench([CPU, GPU])
    cpu, gpu = bench.staff()
    gpu.probes[0].set_result(None)
    bench.settle()
    bench.ask("emulated", arch="b200")
    cpu.end("emulated")
    bench.settle()
    assert cpu.steps[-1][0].kind is Kind.EMULATE
    for number in range(10):
        bench.ask(f"m{number}", last=Kind.MEASURE)
    bench.ask("emulated too", arch="b200")
    cpu.end("emulated")
    bench.settle()
    built = []
    while cpu.texts and cpu.texts[0].startswith("m"):
        built.append(cpu.texts[0])
        cpu.end(cpu.texts[0])
        bench.settle()
    assert gpu.texts == ["m0", "m1"] and built == ["m0", "m1", "m2", "m3", "m4", "m5"]  # 2 in work, 2 ready per slot
    assert cpu.texts == ["emulated too"]  # the control: who is not behind a GPU is built
    gpu.end("m0")
    cpu.end("emulated too")
    bench.settle()
    assert gpu.texts == ["m1", "m2"] and cpu.texts == ["m6"]


def test_a_gpu_worker_takes_only_its_own_generation():
    bench = Bench([BUILDER, GPU, Role("B200 0", GPU.kinds, arch="b200", accelerator="B200")])
    bench.hires.pop()  # comes up later
    builder, gpu = bench.staff()
    gpu.probes[0].set_result(None)
    bench.settle()
    bench.ask("b200", last=Kind.MEASURE, arch="b200")
    builder.end("b200")
    bench.settle()
    assert gpu.texts == []
    bench.ask("h100", last=Kind.MEASURE)
    builder.end("h100")
    bench.settle()
    assert gpu.texts == ["h100"]


# Room


def test_who_finds_no_room_waits_for_it_and_started_episodes_come_first():
    bench, worker = one_worker(capacity=1)
    bench.ask("a")
    later, begun = bench.ask("b"), bench.ask("c", started=True)
    joined = bench.ask("a")  # takes no room
    assert bench.scheduler.status().lobby == 2
    worker.end("a", verdict("a"))
    bench.settle()
    assert worker.texts == ["c"] and joined.done() and not later.done() and not begun.done()


def test_who_waits_for_room_is_looked_for_in_memory_when_asking_and_when_there_is_room():
    looked, known = [], {}
    bench = Bench([CPU], capacity=1, remembered=lambda key: looked.append(key) or known.get(key))
    (worker,) = bench.staff()
    bench.ask("a")
    waiting, found, last = bench.ask("b"), bench.ask("c"), bench.ask("d")
    assert looked == ["a", "b", "c", "d"]
    joined = bench.ask("a")
    bench.wait(50)
    worker.end("a")
    bench.settle()
    assert looked == ["a", "b", "c", "d"]  # though much has happened
    known["c"] = verdict("c")  # by another process
    for text in ("a", "b"):
        worker.end(text, verdict(text))
        bench.settle()
    assert joined.done() and waiting.done() and found.result(0).message == "c"  # the control: it is looked for then
    assert looked == ["a", "b", "c", "d", "b", "c", "d"] and worker.texts == ["d"] and not last.done()


def test_who_waits_for_room_joins_work_that_somebody_else_found_room_for():
    bench, worker = one_worker(capacity=1)
    bench.ask("a")
    waiting, begun = bench.ask("b"), bench.ask("b", started=True)
    worker.end("a", verdict("a"))
    bench.settle()
    assert worker.texts == ["b"] and bench.scheduler.status().lobby == 0
    worker.end("b", verdict("b"))
    bench.settle()
    assert waiting.result(0) == begun.result(0)


def test_who_will_not_wait_is_told_that_there_is_no_room():
    bench, worker = one_worker(capacity=1)
    bench.ask("a")
    refused, patient = bench.ask("b", wait_s=0), bench.ask("c", wait_s=5)
    with pytest.raises(Overloaded, match="1 evaluations are accepted"):
        refused.result(0)
    bench.wait(4)
    assert not patient.done()
    bench.wait(2)
    with pytest.raises(Overloaded):
        patient.result(0)
    worker.end("a", verdict("a"))
    bench.settle()
    assert bench.ask("d", wait_s=0).key == "d" and worker.texts == ["d"]


# Deadlines and cancellation


def test_who_waits_for_room_beyond_his_deadline_is_told_of_that():
    bench, _ = one_worker(capacity=1)
    bench.ask("a")
    late = bench.ask("b", deadline_s=10)
    bench.wait(11)
    with pytest.raises(DeadlineExceeded, match="no room: 1 evaluations"):
        late.result(0)


def test_each_asker_has_a_deadline_of_his_own():
    bench, worker = one_worker()
    hasty, patient = bench.ask("a", deadline_s=10), bench.ask("a", deadline_s=100)
    bench.wait(50)
    with pytest.raises(DeadlineExceeded, match="in step build on cpu 0"):
        hasty.result(0)
    assert not worker.killed
    worker.end("a", verdict("a"))
    bench.settle()
    assert patient.result(0).message == "a"


def test_a_wedged_step_is_ended_after_its_last_deadline_and_others_go_on():
    bench, worker = one_worker()
    wedged, other = bench.ask("wedged", deadline_s=10), bench.ask("other")
    bench.wait(10 + LINGER_S[Kind.BUILD])
    with pytest.raises(DeadlineExceeded):
        wedged.result(0)
    assert worker.killed and bench.counters["expired"] == 1
    (fresh,) = bench.staff()
    assert fresh.texts == ["other"] and not other.done()


def test_others_aboard_a_worker_that_is_ended_begin_again_and_are_counted():
    bench = Bench([BUILDER, GPU])
    builder, gpu = bench.staff()
    gpu.probes[0].set_result(None)
    bench.settle()
    wedged, other = bench.ask("a", last=Kind.MEASURE, deadline_s=10), bench.ask("b", last=Kind.MEASURE)
    for text in ("a", "b"):
        builder.end(text)
        bench.settle()
    assert gpu.texts == ["a", "b"]
    bench.wait(10 + LINGER_S[Kind.MEASURE])
    assert wedged.done() and gpu.killed and not other.done()
    (fresh,) = bench.staff()
    fresh.probes[0].set_result(None)
    bench.settle()
    fresh.end("b")
    bench.settle()
    assert other.result(0).message == "b"
    counters = bench.counters
    assert (counters["steps"], counters["displaced"], counters.get("retries", 0)) == (5, 1, 0)


def two_aboard_a_gpu(**deadlines):
    """A GPU worker with two steps in work, by text, each with a deadline."""
    bench = Bench([BUILDER, GPU])
    builder, gpu = bench.staff()
    gpu.probes[0].set_result(None)
    tickets = [bench.ask(text, last=Kind.MEASURE, deadline_s=after) for text, after in deadlines.items()]
    for text in deadlines:
        builder.end(text)
        bench.settle()
    assert gpu.texts == list(deadlines)
    return bench, gpu, tickets


@pytest.mark.parametrize("apart_s", [0.0, 0.001, 5.0])
def test_two_who_leave_a_gpu_one_after_the_other_cost_it_one_end_and_leave_nothing_behind(apart_s):
    bench, gpu, tickets = two_aboard_a_gpu(a=10.0, b=10.0 + apart_s)
    bench.wait(10 + apart_s + LINGER_S[Kind.MEASURE])
    for ticket in tickets:
        with pytest.raises(DeadlineExceeded):
            ticket.result(0)
    assert gpu.killed and not any(bench.scheduler.status().waiting.values())
    assert "displaced" not in bench.counters  # nothing is to be begun again
    (fresh,) = bench.staff()
    fresh.probes[0].set_result(None)
    bench.settle()
    assert fresh.texts == []
    again = bench.ask("a", last=Kind.MEASURE)
    bench.workers[0].end("a")
    bench.settle()
    fresh.end("a")
    bench.settle()
    assert again.result(0).message == "a"


def test_who_asks_again_before_the_worker_is_ended_finds_the_work_going_on():
    bench, worker = one_worker()
    bench.ask("a", deadline_s=10)
    bench.wait(10)
    again = bench.ask("a")
    bench.wait(60)
    assert not worker.killed
    worker.end("a", verdict("a"))
    bench.settle()
    assert again.result(0).message == "a"


def test_a_cancelled_evaluation_is_dropped_unless_somebody_else_waits():
    bench, worker = one_worker()
    bench.ask("a")
    waiting, alone, shared, sharing = bench.ask("b"), bench.ask("c"), bench.ask("d"), bench.ask("d")
    waiting.cancel()
    shared.cancel()
    with pytest.raises(CancelledError):
        waiting.result(0)
    worker.end("a", verdict("a"))
    bench.settle()
    assert worker.texts == ["c"]
    alone.cancel()
    bench.settle()
    bench.wait(LINGER_S[Kind.BUILD])
    assert worker.killed
    (fresh,) = bench.staff()
    assert fresh.texts == ["d"]
    fresh.end("d", verdict("d"))
    bench.settle()
    assert sharing.result(0).message == "d" and bench.counters["cancelled"] == 3


def test_a_verdict_that_comes_when_nobody_waits_is_kept():
    bench, worker = one_worker()
    bench.ask("a").cancel()
    worker.end("a", verdict("a"))
    bench.settle()
    assert "a" in bench.memory and not worker.killed


# Failures of the machine


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_the_machine_may_fail_as_often_as_there_are_retries(failures):
    bench = Bench([Role(f"cpu {number}", BOTH) for number in range(3)], retries=2)
    workers = bench.staff()
    ticket = bench.ask("a")
    for failure in range(failures):
        (busy,) = [worker for worker in workers if worker.texts]
        busy.end("a", InfrastructureError(f"disk full {failure}"))
        bench.settle()
        bench.wait(10)
    if failures <= 2:
        (busy,) = [worker for worker in workers if worker.texts]
        busy.end("a", verdict("a"))
        bench.settle()
        assert ticket.result(0).message == "a" and bench.counters["retries"] == failures
    else:
        with pytest.raises(InfrastructureError, match=r"failed 3 times .* disk full 2"):
            ticket.result(0)
        assert bench.counters["failed"] == 1


@pytest.mark.parametrize("error", [UsageError("other content"), RuntimeError("a bug")])
def test_what_no_retry_mends_goes_to_the_asker_at_once(error):
    bench, worker = one_worker()
    ticket = bench.ask("a")
    worker.end("a", error)
    bench.settle()
    with pytest.raises(type(error), match=str(error)):
        ticket.result(0)
    assert "retries" not in bench.counters


def test_a_verdict_of_infra_is_no_verdict():
    bench, worker = one_worker()
    ticket = bench.ask("a")
    worker.end("a", verdict("a", Status.INFRA))
    bench.settle()
    assert not ticket.done() and bench.memory == {}
    bench.wait(1)
    worker.end("a", verdict("a"))
    bench.settle()
    assert ticket.result(0).status is Status.OK


def test_a_retry_prefers_another_place():
    bench = Bench([Role("cpu 0", BOTH), Role("cpu 1", BOTH)])
    one, other = bench.staff("here", "there")
    bench.ask("a")
    one.end("a", InfrastructureError("no space"))
    bench.settle()
    bench.wait(1)
    assert one.texts == [] and other.texts == ["a"]


def test_what_a_dead_worker_had_is_done_by_another_and_the_worker_is_replaced():
    bench, worker = one_worker()
    ticket = bench.ask("a")
    worker.end("a")
    bench.settle()
    worker.die("node gone")
    bench.settle()
    (fresh,) = bench.staff()
    bench.wait(1)
    assert fresh.steps[0][0].kind is Kind.EMULATE and fresh.steps[0][0].handover == "build of a"  # not built again
    fresh.end("a")
    bench.settle()
    assert ticket.result(0).message == "a" and bench.counters["deaths"] == 1


def test_a_build_that_went_with_its_node_is_made_again():
    bench, worker = one_worker()
    bench.ask("a")
    worker.end("a")
    bench.settle()
    worker.end("a", HandoverLost("gone"))
    bench.settle()
    bench.wait(1)
    assert worker.texts == ["a"] and worker.steps[-1][0].kind is Kind.BUILD


def test_a_lost_build_counts_neither_against_the_evaluation_nor_against_its_worker():
    bench, worker = one_worker(retries=1)
    ticket = bench.ask("a")
    for error in (InfrastructureError("no disk"), None, HandoverLost("gone"), None, None):
        assert worker.texts == ["a"]
        worker.end("a", error)
        bench.settle()
        bench.wait(1)
    assert ticket.result().message == "a"
    assert bench.counters["retries"] == 2 and bench.counters["rebuilds"] == 1


def test_an_evaluation_whose_builds_are_always_lost_is_given_up():
    bench, worker = one_worker(retries=1)
    ticket = bench.ask("a")
    for error in (None, HandoverLost("gone"), None, HandoverLost("gone again")):
        worker.end("a", error)
        bench.settle()
        bench.wait(1)
    with pytest.raises(InfrastructureError, match="was lost 2 times, last: gone again"):
        ticket.result(0)
    assert "deaths" not in bench.counters


def test_a_text_that_kills_its_workers_is_given_up():
    bench, worker = one_worker(retries=2)
    ticket, other = bench.ask("poison", started=True), bench.ask("b")
    for _ in range(3):
        assert worker.texts == ["poison"]
        worker.die("SIGKILL")
        bench.settle()
        bench.wait(HIRE_PAUSE_MOST_S)
        (worker,) = bench.staff()
    with pytest.raises(InfrastructureError, match=r"failed 3 times .*SIGKILL"):
        ticket.result(0)
    assert worker.texts == ["b"] and not other.done()


def test_of_several_aboard_a_dead_gpu_worker_nobody_is_blamed_until_each_ran_alone():
    bench = Bench([BUILDER, GPU], retries=0)
    builder, gpu = bench.staff()
    gpu.probes[0].set_result(None)
    tickets = {text: bench.ask(text, last=Kind.MEASURE) for text in ("poison", "good")}
    for text in tickets:
        builder.end(text)
        bench.settle()
    assert gpu.texts == ["poison", "good"]
    for _ in range(2):
        gpu.die("sticky error")
        bench.settle()
        bench.wait(60)
        (gpu,) = bench.staff()
        gpu.probes[0].set_result(None)
        bench.settle()
        assert len(gpu.texts) == 1  # alone, though there are two slots
    assert gpu.texts == ["good"]
    with pytest.raises(InfrastructureError, match="sticky error"):
        tickets["poison"].result(0)
    gpu.end("good")
    bench.settle()
    assert tickets["good"].result(0).message == "good"


@pytest.mark.parametrize("started", [False, True], ids=["load of new episodes", "load of begun episodes"])
@pytest.mark.parametrize(("more", "comes_back"), [(0, True), (1, True), (3, True), (1, False), (3, False)])
def test_who_must_run_alone_gets_a_worker_to_itself_under_a_load_that_never_ends(more, comes_back, started):
    roles = [Role(f"H200 {number}", GPU.kinds, GPU.slots, GPU.arch, GPU.accelerator) for number in range(1 + more)]
    bench = Bench([BUILDER, *roles])
    builder, dying, *others = bench.staff()

    def measure(text, begun):
        ticket = bench.ask(text, last=Kind.MEASURE, started=begun)
        while builder.texts:
            builder.end(builder.texts[0])
            bench.settle()
        return ticket

    dying.probes[0].set_result(None)
    bench.settle()
    orphans = {text: measure(text, False) for text in ("one", "other")}
    assert dying.texts == ["one", "other"]
    for worker in others:
        worker.probes[0].set_result(None)
    load = [measure(f"load {number}", started) for number in range(GPU.slots * (2 + more))]
    dying.die("sticky error")
    bench.settle()
    load += [measure(f"more {number}", started) for number in range(GPU.slots)]
    gpus = others
    if comes_back:
        (fresh,) = bench.staff(dying.place)
        fresh.probes[0].set_result(None)
        bench.settle()
        assert fresh.texts == ["one"]  # idle, though it may have been the GPU's fault
        gpus = [fresh, *others]
    for turn in range(2 * (GPU.slots + 1)):
        for worker in gpus:
            assert worker.texts == ["one"] or worker.texts == ["other"] or not {"one", "other"} & set(worker.texts)
        waiting = sum(not orphan.done() for orphan in orphans.values())
        assert sum(len(worker.texts) < GPU.slots for worker in gpus) <= waiting  # the control: others are kept busy
        for worker in gpus:
            worker.end(worker.texts[0])
            load.append(measure(f"turn {turn} of {worker.name}", started))
    assert [orphan.result(0).message for orphan in orphans.values()] == ["one", "other"]
    assert len(bench.hires) == (not comes_back) and sum(ticket.done() for ticket in load) > GPU.slots * more


@pytest.mark.parametrize("busy", [False, True])
def test_who_must_run_alone_rather_runs_where_it_failed_than_waits_for_another_place(busy):
    bench = Bench([BUILDER, GPU, Role("H200 1", GPU.kinds, GPU.slots, GPU.arch, GPU.accelerator)])
    builder, dying, other = bench.staff("node 0", "node 0 GPU 0", "node 0 GPU 1")

    def measure(text):
        bench.ask(text, last=Kind.MEASURE)
        builder.end(text)
        bench.settle()

    dying.probes[0].set_result(None)
    bench.settle()
    measure("one")
    measure("two")
    other.probes[0].set_result(None)
    bench.settle()
    if busy:
        measure("three")
        assert other.texts == ["three"]  # and has a slot free
    dying.die("sticky error")
    bench.settle()
    assert other.texts == (["three"] if busy else ["one"])
    (fresh,) = bench.staff(dying.place)
    fresh.probes[0].set_result(None)
    bench.settle()
    assert fresh.texts == (["one"] if busy else ["two"])


def test_the_end_is_told_to_all_who_wait_and_to_who_comes_after():
    bench, worker = one_worker(capacity=1)
    running, lobby = bench.ask("a"), bench.ask("b")
    bench.scheduler.fail_all(InfrastructureError("closed"))
    bench.settle()
    later = bench.ask("c")
    for ticket in (running, lobby, later):
        with pytest.raises(InfrastructureError, match="closed"):
            ticket.result(0)
    assert worker.killed


def test_what_ended_just_before_the_end_is_told_to_nobody():
    bench, worker = one_worker()
    closed = bench.ask("a")
    worker.end("a", verdict("a"))  # the event lies in the inbox
    bench.scheduler.fail_all(InfrastructureError("closed"))
    bench.settle()
    with pytest.raises(InfrastructureError, match="closed"):
        closed.result(0)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(("ask", "ask started", "end", "fail", "lose", "die", "cancel", "wait", "probe", "unwell")),
        st.integers(0, 7),
    ),
    max_size=60,
)


@given(ACTIONS)
@settings(max_examples=300, deadline=None)
def test_whatever_happens_every_asker_is_answered_once_and_equal_work_is_never_in_work_twice(actions):
    bench = Bench([Role("cpu 0", BOTH), Role("cpu 1", BOTH), GPU], capacity=3, retries=1)
    bench.staff()
    asked = []

    def steps():
        return [
            (worker, step.request.text)
            for worker in bench.workers
            for step, future in worker.steps
            if not future.done()
        ]

    def act(action, number):
        if action.startswith("ask"):
            last = Kind.MEASURE if number % 2 else Kind.EMULATE
            asked.append(bench.ask(f"t{number}", last=last, started="started" in action, deadline_s=300))
        elif action == "cancel" and asked:
            asked[number % len(asked)].cancel()
        elif action == "wait":
            bench.wait(number * 10.0)
        elif action in ("probe", "unwell"):
            for probe in [probe for worker in bench.workers for probe in worker.probes if not probe.done()]:
                if action == "probe":
                    probe.set_result(None)
                else:
                    probe.set_exception(InfrastructureError("not well"))
        elif action == "die":
            if alive := [worker for worker in bench.workers if not worker.killed]:
                alive[number % len(alive)].kill()
        elif steps():
            worker, text = steps()[number % len(steps())]
            worker.end(text, {"fail": InfrastructureError("failed"), "lose": HandoverLost("gone")}.get(action))
        bench.settle()
        bench.staff()

    for action, number in actions:
        act(action, number)
        texts = [text for _, text in steps()]
        assert len(texts) == len(set(texts))
        assert sum(1 for ticket in asked if not ticket.done()) == 0 or bench.scheduler.wake_at() is not None
    for _ in range(200):
        act("probe", 0)
        act("end", 0)
        bench.wait(1)
    bench.wait(400)
    assert all(ticket.done() for ticket in asked)
    for ticket in asked:
        if not ticket.future.cancelled() and ticket.future.exception() is None:
            assert ticket.result(0).message == ticket.request.text
    counters = bench.counters
    ended = ("evaluated", "joined", "remembered", "refused", "cancelled", "expired", "failed")
    assert counters.get("asked", 0) == len(asked) <= sum(counters.get(name, 0) for name in ended)
