"""One evaluation on a GPU, inside the judge process: run every case, judge, count, time; or find out what went wrong.

Everything that touches the GPU is handed in (`Tools`), so that the order of the stages is one story that runs without
a GPU as well. The device lock is held around single steps, never around a wait for something else.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import NoReturn

from ptxgym.device.cuda import counterparts, credit, forgery
from ptxgym.device.cuda.model import Outcome, Request, Witness, signature
from ptxgym.device.cuda.tools import (
    Called,
    CallFailedError,
    Handles,
    Profiled,
    Running,
    SanitizerTool,
    Timed,
    Tools,
    Unusable,
)
from ptxgym.device.cuda.watch import Watch
from ptxgym.device.protocol import Execution, InstructionCount
from ptxgym.errors import InfrastructureError
from ptxgym.judge import evidence as counting
from ptxgym.judge.conditions import Case
from ptxgym.judge.judge import Judgement
from ptxgym.judge.numbers import POISON
from ptxgym.task import load_arch
from ptxgym.verdict import Evidence, Failure, Finding, KernelProfile, Stage, Status, Timing

HANG_FACTOR = 50.0
"""A call that takes so many times the baseline's time hangs, if it does so again with the GPU to itself,"""
HANG_LEAST_S = 2.0
"""but never before this."""
HANG_UNKNOWN_S = 10.0
"""Where no baseline was timed yet, and for kernels that the emulator has found right: they end, if slowly."""
THREADS_PER_SM = 2048
"""For all of which the driver keeps local memory. Source: CUDA C++ Programming Guide, technical specifications, 9.0."""
CROWDED = 0.5
"""A plan that asks for less than this share of the GPU's memory runs out of it only because others hold it."""
KEPT_SHARE = 0.03
"""Of the GPU's memory, for outputs of timed calls that wait for being checked until the lock is released; up to
`queue.MAX_BATCH` candidates are timed at once, and each keeps its own."""
KEPT_CALLS = 32
"""So many at most, since every output holds a descriptor."""

PRINTS = "speed: the kernels print, which takes time of its own; without `printf` they are timed"
OBSERVED_US = 50_000.0
"""Slower kernels are only counted: with all its metrics, Nsight Compute runs a kernel some forty times as long."""

SANITIZERS: Mapping[Status, tuple[SanitizerTool, ...]] = {
    Status.RUNTIME_FAULT: ("memcheck",),
    Status.HANG: ("synccheck",),
    Status.WRONG_OUTPUT: ("memcheck", "racecheck", "synccheck", "initcheck"),
}
"""Which tools may name the cause."""

ENDLESS = frozenset({"emulator.deadlock", "emulator.livelock"})
"""What the emulator says of kernels of which no warp, or none that matters, can go on: no matter of time."""


class _EndedError(Exception):
    """Leaves the flow with its result."""

    def __init__(self, result: Judgement | Failure, case: str = "") -> None:
        super().__init__(result.message)
        self.result, self.case = result, case


def measure(request: Request, tools: Tools, witness: Future[Witness]) -> Outcome:
    """Measure one submission.

    Args:
        request: What to measure.
        tools: With what.
        witness: What the emulator will have said of it; waited for first in tier `rl`, else where it is needed.

    Raises:
        InfrastructureError: if the machine failed; nothing is said about the submission then.
    """
    flow = _Flow(request, tools, witness)
    case = ""
    try:
        result: Judgement | Failure = flow.run()
    except _EndedError as end:
        result, case = end.result, end.case
    return Outcome(
        result=result,
        case=case,
        printed=flow.printed,
        durations_s=flow.watch.durations_s,
        timing=flow.timing,
        profile=flow.profile,
        lock_held_s=flow.lock_held_s,
        notes=tuple(dict.fromkeys(flow.notes)),  # who is profiled twice says some of them twice
        libraries=tools.libraries(),
    )


class _Flow:
    """One submission on its way."""

    def __init__(self, request: Request, tools: Tools, witness: Future[Witness]) -> None:
        self._request = request
        self._tools = tools
        self._witness = witness
        self._task = request.task
        self._first = request.conditions.cases[0]
        self._kept = ExitStack()
        self._process = ExitStack()
        self._running: Running
        self._patient = False
        """Whether a call that takes long is waited for, since the emulator has found the kernel right."""
        self.watch = Watch()
        self.notes: list[str] = []
        self.printed = ""
        self.timing: Timing | None = None
        self.profile: tuple[KernelProfile, ...] = ()
        self.lock_held_s: float | None = None

    def run(self) -> Judgement:
        request, tools = self._request, self._tools
        self._refuse_endless()
        threading.Thread(target=self._prepare, daemon=True).start()
        with ExitStack() as stack, self._process, self._kept:
            self._start()
            calls, executions = [], []
            for case in request.conditions.cases:
                called, execution = self._execute(case, stack)
                calls.append(called)
                executions.append(execution)
            self.printed = next((called.printed for called in calls if called.printed), "")
            with self._on_gpu("judge"):
                judgement = tools.judging.judge(request, executions)
            if judgement.status is not Status.OK:
                found = self._causes(judgement.status)
                raise _EndedError(judgement.model_copy(update={"findings": (*judgement.findings, *found)}))
            return self._credit_and_time(calls[0], executions, judgement)

    def _credit_and_time(self, called: Called, executions: list[Execution], judgement: Judgement) -> Judgement:
        """Count instructions and time; in tier `rl` the emulator's count decides whether to time.

        A kernel may take another way at the emulator's small sizes. So what is credited with target instructions, but
        no faster than others allow, is counted by Nsight Compute in tier `rl` too; and so is what launches other
        kernels or blocks at the measured size, of which the emulator's count says nothing.
        """
        profiled: Profiled | Unusable | None = None
        if self._request.tier == "rl":
            evidence = self._emulated("tier rl profiles only what is slow") if self._same_launches() else None
            if evidence is None:
                profiled = self._profiled(called)
                evidence = self._counted(profiled, called)
            if evidence is not None and evidence.target_ok:
                self._time(executions)
                if evidence.source == "emulator" and credit.needs_counting(self.timing):
                    profiled = self._profiled(called)
                    evidence = self._counted(profiled, called)
            else:
                self.notes.append("speed: tier rl times only what target instructions compute")
        else:
            with ThreadPoolExecutor(1, "profile") as beside:
                profiling = beside.submit(self._profiled, called)
                self._time(executions)
                profiled = profiling.result()
            evidence = self._counted(profiled, called)
        problem = self._lasts_differently(profiled)
        if evidence is not None and problem is not None:  # others may have run beside it, which lengthens it
            profiled = self._profiled(called, alone=True)
            evidence, problem = self._counted(profiled, called), self._lasts_differently(profiled)
            if evidence is not None and problem is not None:
                evidence = credit.denied(evidence, problem)
        return credit.concluded(judgement, evidence, self.timing)

    def _prepare(self) -> None:
        """Have the baselines ready by the time that they are needed; the race itself says what is wrong with them."""
        with contextlib.suppress(Exception):
            self._tools.clock.prepare(self._request, self._request.timing_draws)

    # Running

    def _refuse_endless(self) -> None:
        """End where the emulator has proved that a kernel never ends, in tier `rl`: the GPU is not asked.

        A policy that learns writes many such kernels. Each would hold the GPU until its limit, and its context's end
        keeps the driver from starting others, for seconds.
        """
        if self._request.tier != "rl" or (said := self._said_by_witness().result).code not in ENDLESS:
            return
        self._tools.forgo()
        message = f"{said.message} (emulated, at a small size; tier rl does not call on the GPU what never ends there)"
        raise _EndedError(Failure(stage=Stage.EXECUTE, status=Status.HANG, code=said.code, message=message))

    def _start(self) -> None:
        """Have a process with a fresh CUDA context load the submission."""
        with self.watch.stage("start"):
            self._running = self._process.enter_context(self._tools.executor(self._request.plans))
        with self._on_gpu("load"):
            refused = self._running.load(self._request.build, self._request.plans)
        if refused is not None:
            self._fail(self._first, refused)

    def _execute(self, case: Case, stack: ExitStack) -> tuple[Called, Execution]:
        """Call the plan on `case`; its outputs, and its inputs afterwards, stay until the evaluation ends."""
        with self._on_gpu("inputs"):
            inputs = self._tools.memory.inputs(self._task, case)
            results = stack.enter_context(self._tools.memory.slot(self._task.sizes_bytes(case.axes)))
        with self._on_gpu("execute"):
            called = self._call(case, inputs, results, flush=False)
        if isinstance(called, Failure) and called.status is Status.HANG:
            self._process.close()
            said = self._said_by_witness()  # of every one: whether it comes first must not decide
            if said.status is not Status.HANG:  # which is proof: the emulator counts instructions and not seconds
                self._patient = said.status is Status.OK
                self._start()
                with self._tools.alone(), self.watch.stage("execute"):  # beside others it may only have been slow
                    called = self._call(case, inputs, results, flush=False)
        if isinstance(called, Failure) and called.status is Status.HANG and self._patient:
            slow = f"{called.message} At small sizes it ends and is right (emulated), so it may only be slow."
            called = called.model_copy(update={"message": slow})
        if isinstance(called, Failure):
            self._fail(case, called)
        self._refuse_forged(case, [called], timed=False)
        return called, Execution(buffers=dict(results))

    def _call(self, case: Case, inputs: Handles, results: Handles, *, flush: bool) -> Called | Failure:
        limit_s = self._hang_limit_s(case)
        plan = self._request.plan_index(case.axes)
        poison = {tensor.name: POISON[tensor.dtype] for tensor in self._task.outputs}
        return self._running.call(plan, inputs, results, timeout_s=limit_s, flush=flush, poison=poison)

    def _hang_limit_s(self, case: Case) -> float:
        baseline_us = self._tools.clock.baseline_us(self._task, case)
        if baseline_us is None:
            return HANG_UNKNOWN_S
        return max(HANG_UNKNOWN_S if self._patient else HANG_LEAST_S, HANG_FACTOR * baseline_us / 1e6)

    def _refuse_forged(self, case: Case, calls: list[Called], *, timed: bool) -> None:
        """End where the events' times cannot be true: device code may have written over them."""
        operations = len(self._request.plan(case.axes).operations)
        problem = forgery.contradiction(calls, operations, timed=timed)
        if problem is not None:
            self._running.spoil()  # what was written over may be more than the events
            self._end(Status.INTEGRITY, "timing.forged_events", problem, case)

    # Counting

    def _profiled(self, called: Called, *, alone: bool = False) -> Profiled | Unusable:
        sizes = {tensor.name: tensor.size_bytes(self._first.axes) for tensor in self._task.outputs}
        with self._on_gpu("inputs"):  # allocating may wait for the GPU, and a race must not wait for that
            results = self._kept.enter_context(self._tools.memory.slot(sizes))
        with self.watch.stage("evidence"):
            observe = called.time_us <= OBSERVED_US
            profiled = self._tools.profile(self._request, self._first, results, observe, alone)
        if isinstance(profiled, Failure):
            self._refuse_machines(self._first, profiled)
            profiled = Unusable(f"under Nsight Compute the call failed: {profiled.message}", by_kernel=True)
        if isinstance(profiled, Unusable) and self._request.tier == "publish" and not profiled.by_kernel:
            raise InfrastructureError(
                f"tier publish needs Nsight Compute: {profiled.reason}; use tier standard, whose evidence then comes "
                "from the emulator, or see `ptxgym doctor`"
            )
        return profiled

    def _counted(self, profiled: Profiled | Unusable, called: Called) -> Evidence | None:
        """Return the evidence that counts: the profiler's, cross-checked by the emulator, or the emulator's."""
        if isinstance(profiled, Unusable):
            said = self._said_by_witness()
            if said.status is Status.INFRA:  # nobody has counted, which says nothing about the submission
                raise InfrastructureError(f"{said.result.message}; it was to count instructions: {profiled.reason}")
            evidence = self._emulated(profiled.reason)
            must_be_seen = self._request.tier == "publish" or credit.needs_counting(self.timing)
            if evidence is not None and profiled.by_kernel and must_be_seen:
                return credit.denied(evidence, f"{credit.UNSEEN}; {profiled.reason}")
            return evidence
        self.profile = profiled.kernels
        counts, notes = counterparts.completed(profiled.counts, self._said_by_witness().matrix_counts)
        self.notes += notes
        execution = Execution(buffers={}, counts=counts)
        evidence = counting.gather(
            self._task, load_arch(self._request.arch), self._first, execution, correct=True, ablation=None, source="ncu"
        )
        evidence, notes = credit.cross_checked(evidence, self._said_by_witness())
        self.notes += notes
        problem = self._behaves_differently(profiled, counts, called)
        return credit.denied(evidence, problem) if problem is not None else evidence

    def _behaves_differently(
        self, profiled: Profiled, counts: Sequence[InstructionCount], called: Called
    ) -> str | None:
        """Say how the profiled run differs from the judged one."""
        if profiled.launches != called.launches:
            return "it behaves differently under the profiler: other kernels were launched there"
        with self._on_gpu("judge"):
            right = self._tools.judging.right(self._request, self._first, profiled.outputs)
        if not right:
            return "it behaves differently under the profiler: its output is wrong there"
        families = load_arch(self._request.arch).matrix_families
        return credit.idle_tensor_cores(counts, profiled.kernels, families)

    def _lasts_differently(self, profiled: Profiled | Unusable | None) -> str | None:
        """Say how the time of the profiled run differs from that of the timed ones, where there are both."""
        if profiled is None or isinstance(profiled, Unusable) or self.timing is None:
            return None
        plan = self._request.plan(self._first.axes)
        if len(profiled.durations_us) != len(plan.launches):  # which `_behaves_differently` has told
            return None
        return credit.duration_problem(plan, profiled.durations_us, self.timing.candidate_us)

    def _emulated(self, why: str) -> Evidence | None:
        evidence, notes = credit.emulated(self._said_by_witness(), self._same_launches(), why)
        self.notes += notes
        return evidence

    def _same_launches(self) -> bool:
        """Whether the emulated plan has the operations, kernels and blocks of the measured one."""
        return self._said_by_witness().launches == signature(self._request.plan(self._first.axes))

    def _said_by_witness(self) -> Witness:
        with self.watch.stage("witness"):
            return self._witness.result()

    # Timing

    def _time(self, executions: list[Execution]) -> None:
        """Time the candidate; every timed call's output is checked, after the lock is released where memory allows."""
        if self.printed:
            self.notes.append(PRINTS)
            return
        tools, request = self._tools, self._request
        draws = request.timing_draws
        with self._on_gpu("inputs"):
            inputs = [tools.memory.inputs(self._task, case) for case in draws]
        judged = {
            case.seed: execution.buffers for case, execution in zip(request.conditions.cases, executions, strict=True)
        }
        sizes = {tensor.name: tensor.size_bytes(self._first.axes) for tensor in self._task.outputs}
        calls: list[Called] = []
        waiting: deque[tuple[Case, Handles, ExitStack]] = deque()

        def check_oldest() -> None:
            case, outputs, slot = waiting.popleft()
            with slot:
                self._check_timed(case, outputs, judged.get(case.seed))

        def timed_call(draw: int) -> float:
            case, slot = draws[draw], ExitStack()
            results = slot.enter_context(tools.memory.slot(sizes))
            waiting.append((case, results, slot))
            called = self._call(case, inputs[draw], results, flush=True)
            if isinstance(called, Failure):
                raise CallFailedError(case, called)
            if not called.time_us > 0:  # no ratio can be made of it
                self._refuse_forged(case, [called], timed=True)
            calls.append(called)
            if len(waiting) > min(KEPT_CALLS, KEPT_SHARE * tools.memory_bytes / sum(sizes.values())):
                check_oldest()
            return called.time_us

        try:
            with self.watch.stage("timing"):
                timed = tools.clock.race(request, draws, timed_call)
            if any(called.printed for called in calls):
                self.notes.append(PRINTS)
                return
            if isinstance(timed, Timed):
                self._refuse_forged(self._first, calls, timed=True)
            with self._on_gpu("check"):
                while waiting and isinstance(timed, Timed):
                    check_oldest()
        except CallFailedError as error:
            self._fail(error.case, error.failure)
        finally:
            for _, _, slot in waiting:
                slot.close()
        if isinstance(timed, Failure):
            raise _EndedError(timed)
        self.timing, self.lock_held_s = timed.timing, timed.lock_held_s
        self.notes += [f"baseline {name}: {why}" for name, why in timed.skipped.items()]

    def _check_timed(self, case: Case, outputs: Handles, judged: Mapping[str, object] | None) -> None:
        """End where a timed call's outputs are neither those that were judged right, nor right themselves."""
        judging = self._tools.judging
        if judged is not None and all(judging.equal(found, judged[name]) for name, found in outputs.items()):
            return
        if not judging.right(self._request, case, outputs):
            self._end(
                Status.WRONG_OUTPUT,
                "timing.wrong_output",
                "a timed call's output is wrong, though the same call was right before: the kernel has a race, or "
                "takes another way when it is timed",
                case,
            )

    # What went wrong

    def _fail(self, case: Case, failure: Failure) -> NoReturn:
        """End with a failed call: probe the GPU, look for the cause."""
        self._refuse_machines(case, failure)
        found = self._causes(failure.status)
        message = failure.message
        if failure.status is Status.RUNTIME_FAULT and found:
            message = f"{message} {found[0].message}"
        complete = failure.model_copy(update={"message": message, "findings": (*failure.findings, *found)})
        raise _EndedError(complete, case.name if case != self._first else "")

    def _refuse_machines(self, case: Case, failure: Failure) -> None:
        """Raise where a failed call is the machine's failure: its memory is short, or the GPU is not well."""
        if failure.status is Status.LAUNCH_ERROR and failure.code.endswith("out_of_memory"):
            self._refuse_crowding(case, failure)
        if failure.status in (Status.RUNTIME_FAULT, Status.HANG):
            with self._on_gpu("health"):
                self._tools.check_health()

    def _refuse_crowding(self, case: Case, failure: Failure) -> None:
        frame_bytes = max((kernel.stack_bytes for kernel in self._request.build.kernels), default=0)
        asked = sum(buffer.size_bytes for buffer in self._request.plan(case.axes).buffers)
        asked += frame_bytes * credit.MOST_SMS * THREADS_PER_SM
        if asked < CROWDED * self._tools.memory_bytes:
            raise InfrastructureError(
                f"the GPU's memory is short, though the submission asks for {asked / 2**30:.1f} GiB of "
                f"{self._tools.memory_bytes / 2**30:.0f} GiB: {failure.message}; end what else runs there"
            )

    def _causes(self, status: Status) -> tuple[Finding, ...]:
        """Run the sanitizers on the small call; in tier `rl` only after faults of which the emulator names no cause."""
        names = SANITIZERS.get(status, ())
        if not names or (self._request.tier == "rl" and (status is not Status.RUNTIME_FAULT or self._is_explained())):
            return ()
        try:
            with self.watch.stage("sanitizer"):
                found = self._tools.sanitize(self._request, self._request.stress, names)
                if found == () and status is Status.RUNTIME_FAULT:
                    found = self._tools.sanitize(self._request, self._first, names)
        except InfrastructureError as error:  # the verdict stands without its cause
            found = Unusable(str(error))
        if isinstance(found, Unusable):
            self.notes.append(f"causes of the failure: {found.reason}")
            return ()
        return tuple(finding.model_copy(update={"source": "compute-sanitizer"}) for finding in found)

    def _is_explained(self) -> bool:
        """Whether the emulator has met a fault too, and named its line: a sanitizer takes half a minute."""
        return self._said_by_witness().status is Status.RUNTIME_FAULT

    def _end(self, status: Status, code: str, message: str, case: Case) -> NoReturn:
        failure = Failure(stage=Stage.JUDGE, status=status, code=code, message=message)
        raise _EndedError(failure, case.name if case != self._first else "")

    @contextmanager
    def _on_gpu(self, stage: str) -> Iterator[None]:
        """Use the GPU beside others, but never while something is timed."""
        with ExitStack() as stack:
            with self.watch.stage("wait"):
                stack.enter_context(self._tools.shared())
            with self.watch.stage(stage):
                yield
