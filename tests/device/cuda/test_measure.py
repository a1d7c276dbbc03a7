"""The flow of one measurement on a fake GPU: every way that it can go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgym.build.model import KernelResources
from ptxgym.device.cuda.measure import measure
from ptxgym.device.cuda.model import Outcome, Tier
from ptxgym.device.cuda.tools import Unusable
from ptxgym.errors import InfrastructureError
from ptxgym.judge.judge import Judgement
from ptxgym.task import Task
from ptxgym.verdict import Failure, Finding, Severity, Status
from tests.device.cuda import fakes
from tests.device.cuda.fakes import FakeGpu, evidence, failure, witness

CASES = 4
DENIED_SCORE = 0.2


@pytest.fixture
def gpu(gemm: Task) -> FakeGpu:
    return FakeGpu(gemm)


def run(gpu: FakeGpu, tier: Tier = "standard", seen: Any = None) -> Outcome:
    outcome = measure(fakes.request(tier), gpu.tools(), seen or witness())
    assert (gpu.open_executors, gpu.open_slots, gpu.shared) == (0, 0, 0)
    return outcome


def judged(outcome: Outcome) -> Judgement:
    assert isinstance(outcome.result, Judgement)
    return outcome.result


def failed(outcome: Outcome) -> Failure:
    assert isinstance(outcome.result, Failure)
    return outcome.result


def test_right_kernel_is_judged_counted_and_timed(gpu: FakeGpu) -> None:
    outcome = run(gpu)
    found = judged(outcome)
    assert (found.status, found.code) == (Status.OK, "judge.ok")
    assert found.evidence is not None
    assert (found.evidence.source, found.evidence.coverage, found.evidence.ablation) == ("ncu", 1.0, "depends")
    assert found.evidence.target_ok
    assert outcome.timing is not None and outcome.timing.speedup == pytest.approx(0.88)
    assert 0.9 < found.score < 1.0  # 0.5 for the target, and nearly all of the rest for 0.88
    assert outcome.lock_held_s == 0.02 and outcome.printed == "" and outcome.libraries == {"cuBLAS": "13.1"}
    assert outcome.profile[0].duration_us == 98.0 and outcome.notes == ()
    assert [flush for _, flush, _ in gpu.calls] == [False] * CASES + [True] * gpu.rounds
    assert {"load", "execute", "judge", "evidence", "timing", "wait", "check"} <= set(outcome.durations_s)
    assert (gpu.profiles, gpu.races, gpu.probes, gpu.sanitized) == (1, 1, 0, [])
    assert gpu.prepared.wait(10)


def test_limit_of_a_call_follows_the_baseline(gpu: FakeGpu) -> None:
    gpu.baseline = 100_000.0
    run(gpu)
    assert {limit for _, _, limit in gpu.calls} == {5.0}


@pytest.mark.parametrize(("baseline_us", "limit_s"), [(88.0, 2.0), (None, 10.0)])
def test_limit_of_a_call_is_never_short(gpu: FakeGpu, baseline_us: float | None, limit_s: float) -> None:
    gpu.baseline = baseline_us
    run(gpu)
    assert {limit for _, _, limit in gpu.calls} == {limit_s}


def test_refused_launch_ends_before_any_call(gpu: FakeGpu) -> None:
    gpu.loaded = failure(Status.LAUNCH_ERROR, "launch.too_much_shared_memory")
    outcome = run(gpu)
    assert failed(outcome).status is Status.LAUNCH_ERROR and outcome.case == ""
    assert gpu.calls == [] and gpu.probes == 0 and gpu.sanitized == []


def test_wrong_output_is_examined_but_neither_counted_nor_timed(gpu: FakeGpu) -> None:
    race = Finding(code="sanitizer.racecheck.hazard", severity=Severity.ERROR, message="Two threads race.", line=7)
    gpu.found = {"racecheck": (race,)}
    gpu.output = lambda number, output: output if number != 1 else np.roll(output, 64)
    outcome = run(gpu)
    found = judged(outcome)
    assert found.status is Status.WRONG_OUTPUT and "emulation/shifted" in found.message
    assert found.score >= 0.05  # a sanitizer's word changes no score
    assert [(one.code, one.source) for one in found.findings] == [(race.code, "compute-sanitizer")]
    assert gpu.sanitized == [("schedules/normal", ("memcheck", "racecheck", "synccheck", "initcheck"))]
    assert (gpu.profiles, gpu.races, outcome.timing) == (0, 0, None)


def test_rl_leaves_the_causes_of_wrong_output_to_the_emulator(gpu: FakeGpu) -> None:
    gpu.output = lambda number, output: output * 0
    assert judged(run(gpu, "rl")).status is Status.WRONG_OUTPUT
    assert gpu.sanitized == []


def test_changed_input_is_an_integrity_failure(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FakeGpu.call

    def meddle(self: FakeGpu, plan: int, inputs: Any, results: Any, **options: Any) -> Any:
        answer = honest(self, plan, inputs, results, **options)
        results["A"][5] ^= 1
        return answer

    monkeypatch.setattr(FakeGpu, "call", meddle)
    assert judged(run(gpu)).code == "judge.input_modified"


@pytest.mark.parametrize("tier", ["rl", "standard"])
def test_fault_is_probed_and_located(gpu: FakeGpu, tier: Tier) -> None:
    said = "Kernel gemm writes 4 bytes out of bounds at line 12, thread (3,0,0), block (1,0,0)."
    place = Finding(code="sanitizer.memcheck.global_write", severity=Severity.ERROR, message=said, line=12)
    gpu.found = {"memcheck": (place,)}
    gpu.answer = lambda number, call: failure(Status.RUNTIME_FAULT, "fault.illegal_address") if number == 3 else call
    outcome = run(gpu, tier)
    found = failed(outcome)
    assert found.status is Status.RUNTIME_FAULT and outcome.case.startswith("hidden/")
    assert found.message == f"It failed. {place.message}"
    assert found.findings[0].line == 12 and found.findings[0].source == "compute-sanitizer"
    assert gpu.probes == 1 and gpu.sanitized == [("schedules/normal", ("memcheck",))]


def test_fault_that_the_small_call_does_not_show_is_replayed_at_full_size(gpu: FakeGpu) -> None:
    gpu.answer = lambda number, call: failure(Status.RUNTIME_FAULT, "fault.illegal_address")
    run(gpu)
    assert [name for name, _ in gpu.sanitized] == ["schedules/normal", "emulation/normal"]


def test_missing_sanitizer_is_named(gpu: FakeGpu) -> None:
    gpu.found = Unusable("compute-sanitizer is not installed")
    gpu.output = lambda number, output: output * 0
    outcome = run(gpu)
    assert judged(outcome).findings == () and "compute-sanitizer is not installed" in outcome.notes[0]


@pytest.mark.parametrize("status", [Status.RUNTIME_FAULT, Status.WRONG_OUTPUT])
def test_sanitizer_that_breaks_takes_no_verdict_away(gpu: FakeGpu, status: Status) -> None:
    gpu.found = InfrastructureError("the executor did not start within 60 s")
    if status is Status.WRONG_OUTPUT:
        gpu.output = lambda number, output: output * 0
    else:
        gpu.answer = lambda number, call: failure(status, "fault.illegal_address")
    outcome = run(gpu)
    assert outcome.result.status is status and "did not start" in outcome.notes[0]


def test_hang_is_probed(gpu: FakeGpu) -> None:
    gpu.answer = lambda number, call: failure(Status.HANG, "hang.watchdog")
    assert failed(run(gpu)).code == "hang.watchdog"
    assert gpu.probes == 1 and gpu.sanitized == [("schedules/normal", ("synccheck",))]
    assert (len(gpu.calls), gpu.alone) == (2, 1)


def test_what_is_slow_beside_others_is_no_hang(gpu: FakeGpu) -> None:
    gpu.answer = lambda number, call: failure(Status.HANG, "hang.watchdog") if number == 1 else call
    assert judged(run(gpu)).status is Status.OK
    assert (gpu.alone, gpu.probes, gpu.loads) == (1, 0, 2)


@pytest.mark.parametrize(
    ("said", "limits_s"),
    [
        (None, [2.0, 10.0, 10.0]),
        (failure(Status.BUDGET, "budget.instructions"), [2.0, 2.0]),
        (failure(Status.WRONG_OUTPUT, "judge.wrong_output"), [2.0, 2.0]),
    ],
    ids=["right", "unknown", "wrong"],
)
def test_what_the_emulator_finds_right_is_waited_for_longer(
    gpu: FakeGpu, said: Failure | None, limits_s: list[float]
) -> None:
    """A right kernel earns more than a wrong one, however slow it is."""
    slow = replace(fakes.FakeCall(), time_us=5e6, device_wall_us=5e6 + 50.0)
    gpu.answer = lambda n, call: slow if gpu.calls[n][2] > 5.0 else failure(Status.HANG, "cuda.hang", "No end.")
    gpu.profiled = lambda profile: replace(profile, durations_us=(5e6,))
    outcome = run(gpu, seen=witness(said))
    assert [limit for _, _, limit in gpu.calls][: len(limits_s)] == limits_s
    if said is None:
        assert judged(outcome).score >= 0.5 and outcome.timing is not None
        assert {limit for _, _, limit in gpu.calls[1:]} == {10.0} and gpu.alone == 1
    else:
        assert failed(outcome).message == "No end." and len(gpu.calls) == 2


def test_who_does_not_end_within_the_longer_limit_hangs_and_may_be_slow(gpu: FakeGpu) -> None:
    gpu.answer = lambda number, call: failure(Status.HANG, "cuda.hang", "It did not end within 10 s.")
    found = failed(run(gpu))
    assert found.status is Status.HANG and found.message.startswith("It did not end within 10 s. At small sizes")
    assert [limit for _, _, limit in gpu.calls] == [2.0, 10.0]


def test_deadlock_that_the_emulator_proves_is_not_tried_again(gpu: FakeGpu) -> None:
    gpu.answer = lambda number, call: failure(Status.HANG, "hang.watchdog")
    assert failed(run(gpu, seen=witness(failure(Status.HANG, "emulator.deadlock")))).code == "hang.watchdog"
    assert (len(gpu.calls), gpu.alone) == (1, 0)


DEADLOCK = failure(Status.HANG, "emulator.deadlock", "deadlock: line 7 waits for an arrival that never comes")


def test_rl_does_not_call_what_the_emulator_has_proved_to_deadlock(gpu: FakeGpu) -> None:
    gpu.answer = lambda number, call: failure(Status.HANG, "cuda.hang")
    outcome = run(gpu, "rl", witness(DEADLOCK))
    found = failed(outcome)
    assert (found.status, found.code, outcome.case) == (Status.HANG, "emulator.deadlock", "")
    assert "line 7 waits" in found.message and "emulated, at a small size" in found.message
    assert (gpu.calls, gpu.loads, gpu.probes, gpu.sanitized) == ([], 0, 0, [])
    assert gpu.forgone == 1


@pytest.mark.parametrize("tier", ["standard", "publish"])
def test_other_tiers_ask_the_gpu_whether_a_kernel_deadlocks(gpu: FakeGpu, tier: Tier) -> None:
    """A kernel may deadlock at the emulator's sizes alone."""
    assert judged(run(gpu, tier, witness(DEADLOCK))).status is Status.OK
    assert len(gpu.calls) > CASES


@pytest.mark.parametrize("status", [Status.BUDGET, Status.NOT_EMULATED, Status.WRONG_OUTPUT])
def test_rl_asks_the_gpu_where_the_emulator_has_proved_no_deadlock(gpu: FakeGpu, status: Status) -> None:
    gpu.answer = lambda number, call: failure(Status.HANG, "cuda.hang", "It did not end.")
    assert failed(run(gpu, "rl", witness(failure(status, "any.other")))).code == "cuda.hang"
    assert len(gpu.calls) == 2 and gpu.forgone == 0


def test_rl_asks_the_gpu_where_only_a_second_call_never_ends(gpu: FakeGpu) -> None:
    assert judged(run(gpu, "rl", witness(failure(Status.HANG, "second_call.hang")))).status is Status.OK


ERROR = Finding(code="smem.race", severity=Severity.ERROR, message="Two threads race, which faults nowhere.", line=7)


@pytest.mark.parametrize(
    ("said", "tools"),
    [
        (failure(Status.RUNTIME_FAULT, "emulator.out_of_bounds"), []),
        (failure(Status.WRONG_OUTPUT, "judge.wrong_output").model_copy(update={"findings": (ERROR,)}), ["memcheck"]),
        (failure(Status.NOT_EMULATED, "not_emulated.form"), ["memcheck"]),
    ],
    ids=["fault", "race", "unknown"],
)
def test_rl_sanitizes_faults_of_which_the_emulator_names_no_cause(
    gpu: FakeGpu, said: Failure, tools: list[str]
) -> None:
    gpu.answer = lambda number, call: failure(Status.RUNTIME_FAULT, "cuda.launch_failed")
    assert failed(run(gpu, "rl", witness(said))).status is Status.RUNTIME_FAULT
    assert sorted({tool for _, asked in gpu.sanitized for tool in asked}) == tools


def test_gpu_that_is_not_well_after_a_fault_is_the_machines_failure(gpu: FakeGpu) -> None:
    gpu.answer = lambda number, call: failure(Status.RUNTIME_FAULT, "fault.illegal_address")
    gpu.health = InfrastructureError("uncorrectable ECC error; reset the GPU")
    with pytest.raises(InfrastructureError, match="reset the GPU"):
        run(gpu)


@pytest.mark.parametrize(("workspace", "kind"), [(1 << 40, Failure), (1 << 20, InfrastructureError)])
def test_out_of_memory_is_the_submissions_fault_only_if_it_asks_for_much(
    gpu: FakeGpu, workspace: int, kind: type
) -> None:
    gpu.answer = lambda number, call: failure(Status.LAUNCH_ERROR, "launch.out_of_memory")
    request = fakes.request()
    buffers = (*request.plans[0].buffers, fakes.Buffer(name="workspace0", role="workspace", size_bytes=workspace))
    plans = (request.plans[0].model_copy(update={"buffers": buffers}), *request.plans[1:])
    if kind is InfrastructureError:
        with pytest.raises(InfrastructureError, match="memory is short"):
            measure(replace(request, plans=plans), gpu.tools(), witness())
    else:
        outcome = measure(replace(request, plans=plans), gpu.tools(), witness())
        assert failed(outcome).status is Status.LAUNCH_ERROR


@pytest.mark.parametrize(("frame_bytes", "kind"), [(512 << 10, Failure), (4 << 10, InfrastructureError)])
def test_stack_frames_of_all_threads_are_asked_for_too(gpu: FakeGpu, frame_bytes: int, kind: type) -> None:
    gpu.loaded = failure(Status.LAUNCH_ERROR, "cuda.out_of_memory")
    kernel = KernelResources(
        name=fakes.KERNEL, registers=32, static_smem_bytes=0, stack_bytes=frame_bytes, spill_store_bytes=0,
        spill_load_bytes=0, param_bytes=(), param_aligns=(),
    )  # fmt: skip
    request = replace(fakes.request(), build=replace(fakes.fake_build(), kernels=(kernel,)))
    if kind is Failure:
        assert failed(measure(request, gpu.tools(), witness())).code == "cuda.out_of_memory"
    else:
        with pytest.raises(InfrastructureError, match="memory is short"):
            measure(request, gpu.tools(), witness())


# Counting


def test_without_permission_the_emulators_count_stands_and_is_named(gpu: FakeGpu) -> None:
    gpu.profiled = lambda profile: Unusable("this user may not profile")
    outcome = run(gpu)
    found = judged(outcome)
    assert found.evidence is not None and found.evidence.source == "emulator" and found.evidence.target_ok
    assert "this user may not profile" in outcome.notes[0] and "emulator" in outcome.notes[0]
    assert outcome.timing is not None and found.score > 0.9


@pytest.mark.parametrize(("time_us", "observed"), [(100.0, True), (160_000.0, False)])
def test_slow_kernel_is_only_counted(gpu: FakeGpu, time_us: float, observed: bool) -> None:
    gpu.answer = lambda number, call: replace(call, time_us=time_us, device_wall_us=time_us + 50.0)
    gpu.profiled = lambda profile: replace(profile, durations_us=(time_us,))
    assert judged(run(gpu)).evidence is not None
    assert gpu.observed is observed


def test_fast_call_that_fails_under_the_profiler_is_counted_by_the_emulator(gpu: FakeGpu) -> None:
    gpu.profiled = lambda profile: failure(Status.RUNTIME_FAULT, "fault.illegal_address", "Fell over.")
    outcome = run(gpu)
    assert judged(outcome).score > 0.9 and "Fell over." in outcome.notes[0]


@pytest.mark.parametrize("tier", ["rl", "standard"])
def test_slow_call_that_fails_under_the_profiler_gets_no_credit(gpu: FakeGpu, tier: Tier) -> None:
    gpu.raced = lambda timed: replace(timed, timing=timed.timing.model_copy(update={"tflops": 540.0}))
    gpu.profiled = lambda profile: failure(Status.RUNTIME_FAULT, "fault.illegal_address", "Fell over.")
    found = judged(run(gpu, tier))
    assert found.score == DENIED_SCORE and "under `ncu`" in found.message and "Fell over." in found.message
    gpu.profiled = lambda profile: Unusable("this user may not profile")  # which no kernel can bring about
    assert judged(run(gpu, tier)).evidence.target_ok  # type: ignore[union-attr]


@pytest.mark.parametrize("tier", ["rl", "standard"])
def test_call_that_fails_under_the_profiler_for_the_machines_sake_is_no_verdict(gpu: FakeGpu, tier: Tier) -> None:
    gpu.raced = lambda timed: replace(timed, timing=timed.timing.model_copy(update={"tflops": 540.0}))
    gpu.profiled = lambda profile: failure(Status.LAUNCH_ERROR, "cuda.out_of_memory", "No memory for workspace0.")
    with pytest.raises(InfrastructureError, match=r"memory is short, .* No memory for workspace0"):
        run(gpu, tier)
    gpu.profiled = lambda profile: failure(Status.RUNTIME_FAULT, "fault.illegal_address", "Fell over.")
    gpu.health = InfrastructureError("uncorrectable ECC error; reset the GPU")
    with pytest.raises(InfrastructureError, match="reset the GPU"):
        run(gpu, tier)
    gpu.health, gpu.probes = None, 0
    assert judged(run(gpu, tier)).score == DENIED_SCORE and gpu.probes == 1, "the control"


def test_publish_without_nsight_compute_is_refused(gpu: FakeGpu) -> None:
    gpu.profiled = lambda profile: Unusable("this user may not profile")
    with pytest.raises(InfrastructureError, match=r"publish needs Nsight Compute: this user may not profile"):
        run(gpu, "publish")
    gpu.profiled = lambda profile: failure(Status.RUNTIME_FAULT, "fault.illegal_address")  # not the machine's fault
    assert judged(run(gpu, "publish")).score == DENIED_SCORE
    gpu.profiled = lambda profile: profile
    assert judged(run(gpu, "publish")).score > 0.9


def test_rl_counts_on_the_emulator_and_does_not_profile(gpu: FakeGpu) -> None:
    outcome = run(gpu, "rl")
    found = judged(outcome)
    assert found.evidence is not None and found.evidence.source == "emulator"
    assert gpu.profiles == 0 and outcome.timing is not None and found.score > 0.9


@pytest.mark.parametrize(("tflops", "profiles"), [(540.0, 1), (620.0, 0)])
def test_rl_profiles_what_older_instructions_could_have_done(gpu: FakeGpu, tflops: float, profiles: int) -> None:
    gpu.raced = lambda timed: replace(timed, timing=timed.timing.model_copy(update={"tflops": tflops}))
    gpu.profiled = lambda p: replace(p, counts=(replace(p.counts[0], family="mma.sync", form="HMMA.16816.F32.BF16"),))
    found = judged(run(gpu, "rl"))
    assert gpu.profiles == profiles
    assert found.evidence is not None and found.evidence.target_ok is (profiles == 0)


def test_rl_does_not_time_what_runs_off_the_target(gpu: FakeGpu) -> None:
    off = witness(target_ok=False, coverage=0.0, target_multiply_adds=0, explanation="no wgmma instruction executed")
    outcome = run(gpu, "rl", off)
    assert outcome.timing is None and gpu.races == 0
    assert judged(outcome).score == 0.2 and any(note.startswith("speed: ") for note in outcome.notes)


def test_rl_profiles_what_the_emulator_cannot_run(gpu: FakeGpu) -> None:
    outcome = run(gpu, "rl", witness(failure(Status.NOT_EMULATED, "not_emulated.form", "cp.reduce is not emulated")))
    found = judged(outcome)
    assert gpu.profiles == 1 and found.evidence is not None and found.evidence.source == "ncu"
    assert found.evidence.target_ok and outcome.timing is not None


@pytest.mark.parametrize("tier", ["rl", "standard"])
def test_emulator_that_broke_down_is_no_score_where_its_count_is_needed(gpu: FakeGpu, tier: Tier) -> None:
    gpu.profiled = lambda profile: Unusable("this user may not profile")
    killed = failure(Status.INFRA, "emulator.failed", "the emulator failed: its worker was killed")
    with pytest.raises(InfrastructureError, match=r"its worker was killed; .*: this user may not profile"):
        run(gpu, tier, witness(killed))
    unknown = failure(Status.NOT_EMULATED, "not_emulated.form", "cp.reduce is not emulated")  # the kernel's own doing
    outcome = run(gpu, tier, witness(unknown))
    assert judged(outcome).score == DENIED_SCORE and "cp.reduce is not emulated" in outcome.notes[0]


def test_evidence_of_the_emulator_needs_the_same_launches(gpu: FakeGpu) -> None:
    gpu.profiled = lambda profile: Unusable("this user may not profile")
    outcome = run(gpu, "rl", witness(block=128))
    found = judged(outcome)
    assert found.evidence is not None and not found.evidence.target_ok
    assert found.score == DENIED_SCORE and "other kernels or blocks" in found.message
    assert gpu.races == 0


def test_rl_profiles_what_launches_otherwise_at_the_measured_size(gpu: FakeGpu) -> None:
    found = judged(run(gpu, "rl", witness(block=128)))
    assert found.evidence is not None and found.evidence.source == "ncu" and found.score > 0.9
    assert (gpu.profiles, gpu.races) == (1, 1)


def test_standard_times_also_what_runs_off_the_target(gpu: FakeGpu) -> None:
    gpu.profiled = lambda p: replace(p, counts=(replace(p.counts[0], family="fma", form="FFMA"),))
    off = witness(target_ok=False, coverage=0.0, target_multiply_adds=0, explanation="no wgmma instruction executed")
    outcome = run(gpu, seen=off)
    assert outcome.timing is not None and judged(outcome).score == 0.2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ablation": "independent", "target_ok": False, "explanation": "it stays right"}, "it stays right"),
        ({"coverage": 0.1, "target_ok": False}, "1.00 under the profiler, but 0.10 without one"),
        ({"target_ok": False, "explanation": "too many other instructions"}, "too many other instructions"),
    ],
)
def test_witness_denies_what_it_does_not_see(gpu: FakeGpu, changes: dict[str, Any], said: str) -> None:
    found = judged(run(gpu, seen=witness(**changes)))
    assert found.status is Status.OK and found.score == DENIED_SCORE
    assert found.evidence is not None and not found.evidence.target_ok and said in (found.evidence.explanation or "")


def test_witness_that_sees_another_result_denies(gpu: FakeGpu) -> None:
    wrong = Judgement(status=Status.WRONG_OUTPUT, code="judge.wrong_output", message="C is wrong", score=0.05,
                      evidence=evidence(target_ok=False))  # fmt: skip
    found = judged(run(gpu, seen=witness(wrong)))
    assert found.score == DENIED_SCORE and "not on the emulator" in found.message and "C is wrong" in found.message


@pytest.mark.parametrize("status", [Status.NOT_EMULATED, Status.BUDGET, Status.INFRA])
@pytest.mark.parametrize("tier", ["rl", "standard"])
def test_witness_that_could_not_run_denies_nothing_and_is_named(gpu: FakeGpu, status: Status, tier: Tier) -> None:
    outcome = run(gpu, tier, witness(failure(status, "x.y", "it does not know this form")))
    assert judged(outcome).score > 0.9
    assert any("it does not know this form" in note for note in outcome.notes)


def test_profiled_run_must_launch_compute_and_last_as_the_others(gpu: FakeGpu) -> None:
    gpu.profiled = lambda p: replace(p, launches=("other",))
    assert "other kernels were launched" in judged(run(gpu)).message
    gpu.profiled = lambda p: replace(p, launches=("other", *p.launches), durations_us=(1.0, *p.durations_us))
    assert "other kernels were launched" in judged(run(gpu)).message  # and no fault, though there is one time too many
    gpu.profiled = lambda p: replace(p, outputs={"C": p.outputs["C"] * 0})
    assert "output is wrong there" in judged(run(gpu)).message
    gpu.profiled = lambda p: replace(p, durations_us=(350.0,))
    outcome = run(gpu)
    assert "350 µs there, 100 µs when timed" in judged(outcome).message and judged(outcome).score == DENIED_SCORE


# Timing


def test_time_that_the_hosts_clock_contradicts_is_an_integrity_failure(gpu: FakeGpu) -> None:
    gpu.answer = lambda number, call: replace(call, time_us=900.0)
    assert failed(run(gpu)).code == "timing.forged_events"
    assert len(gpu.calls) == gpu.spoilt == 1
    gpu.answer = lambda number, call: call if number < CASES else replace(call, time_us=10.0, device_wall_us=900.0)
    gpu.calls.clear()
    outcome = run(gpu)
    assert failed(outcome).status is Status.INTEGRITY and outcome.timing is None
    gpu.spoilt = 0
    gpu.answer = lambda number, call: call
    judged(run(gpu))
    assert gpu.spoilt == 0, "the control"


@pytest.mark.parametrize("first", [0, 2, CASES + 1])
def test_kernels_that_print_are_right_but_not_timed(gpu: FakeGpu, first: int) -> None:
    gpu.answer = lambda n, call: replace(call, printed="hello\n", device_wall_us=9000.0) if n == first else call
    outcome = run(gpu)
    assert judged(outcome).score == 0.5 and outcome.timing is None
    assert any("printf" in note for note in outcome.notes)
    assert outcome.printed == ("hello\n" if first < CASES else "")


def test_time_of_which_no_ratio_can_be_made_ends_the_race_of_who_forged_it(gpu: FakeGpu) -> None:
    gpu.answer = lambda number, call: call if number < CASES else replace(call, time_us=-3.0)
    assert failed(run(gpu)).code == "timing.forged_events"
    assert len(gpu.calls) == CASES + 1


@pytest.mark.parametrize("tier", ["rl", "standard"])
def test_durations_are_compared_whenever_both_are_known(gpu: FakeGpu, tier: Tier) -> None:
    gpu.profiled = lambda p: replace(p, durations_us=(350.0,))
    found = judged(run(gpu, tier, witness(failure(Status.NOT_EMULATED, "not_emulated.form"))))
    assert "350 µs there, 100 µs when timed" in found.message and found.score == DENIED_SCORE
    assert gpu.profiles == 2 and gpu.profiled_alone


@pytest.mark.parametrize("tier", ["rl", "standard"])
def test_profile_that_lasts_longer_beside_others_is_made_again_alone(gpu: FakeGpu, tier: Tier) -> None:
    gpu.profiled = lambda p: p if gpu.profiled_alone else replace(p, durations_us=(350.0,))
    unknown = witness(failure(Status.NOT_EMULATED, "not_emulated.form"))
    outcome = run(gpu, tier, unknown)
    assert judged(outcome).score > 0.9 and gpu.profiles == 2
    assert len(set(outcome.notes)) == len(outcome.notes)
    gpu.profiles, gpu.profiled = 0, lambda p: p
    assert run(gpu, tier, unknown).notes == outcome.notes and gpu.profiles == 1, "the control"


def test_baselines_that_were_not_timed_are_named(gpu: FakeGpu) -> None:
    gpu.raced = lambda timed: replace(timed, skipped={"FlashInfer": "not installed (No module named 'flashinfer')"})
    assert run(gpu).notes == ("baseline FlashInfer: not installed (No module named 'flashinfer')",)


def test_one_late_wake_up_is_no_forgery(gpu: FakeGpu) -> None:
    gpu.answer = lambda number, call: replace(call, device_wall_us=5000.0) if number in (1, CASES) else call
    assert judged(run(gpu)).status is Status.OK


def test_timed_output_that_is_wrong_is_found(gpu: FakeGpu) -> None:
    gpu.output = lambda number, output: output * 0 if number == CASES + 2 else output
    outcome = run(gpu)
    assert (failed(outcome).status, failed(outcome).code) == (Status.WRONG_OUTPUT, "timing.wrong_output")
    assert outcome.timing is None


def test_timed_output_that_differs_within_its_budget_is_right(gpu: FakeGpu) -> None:
    def rounded_otherwise(number: int, output: Any) -> Any:
        if number < CASES:
            return output
        words = output.copy().view(np.uint16)
        words[17] ^= 1
        return words.view(np.uint8)

    gpu.output = rounded_otherwise
    assert judged(run(gpu)).status is Status.OK


def test_failing_timed_call_is_a_fault(gpu: FakeGpu) -> None:
    gpu.answer = lambda n, call: call if n < CASES + 1 else failure(Status.RUNTIME_FAULT, "fault.illegal_address")
    outcome = run(gpu)
    assert failed(outcome).code == "fault.illegal_address" and gpu.probes == 1


def test_race_that_fails_ends_the_evaluation(gpu: FakeGpu) -> None:
    gpu.raced = lambda timed: failure(Status.INTEGRITY, "timing.roofline", "Faster than the roofline.")
    assert failed(run(gpu)).code == "timing.roofline"


@pytest.mark.parametrize(("bound", "value"), [("KEPT_SHARE", 1e-12), ("KEPT_CALLS", 0)])
def test_outputs_of_timed_calls_are_checked_early_where_memory_or_descriptors_are_short(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, bound: str, value: float
) -> None:
    monkeypatch.setattr(f"ptxgym.device.cuda.measure.{bound}", value)
    gpu.output = lambda number, output: output * 0 if number == CASES else output
    outcome = run(gpu)
    assert failed(outcome).code == "timing.wrong_output" and len(gpu.calls) == CASES + 1


def test_machine_failure_passes_through_and_leaves_nothing_open(gpu: FakeGpu) -> None:
    gpu.answer = lambda number, call: InfrastructureError("the executor ended") if number == CASES + 1 else call
    with pytest.raises(InfrastructureError, match="executor ended"):
        run(gpu)
    assert (gpu.open_executors, gpu.open_slots, gpu.shared) == (0, 0, 0)
