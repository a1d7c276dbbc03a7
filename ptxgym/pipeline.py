"""The order of the stages: submission, build, plan, device, judge. One text in, one verdict out.

The first stage that the submission fails ends the evaluation. Numbers, counts and faults come from a fair schedule.
Adversarial schedules only add findings; where one ends in a fault or a deadlock, that is a warning: published, fast
kernels hold such orders, which the memory model allows and hardware practically never takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from ptxgym import full_size, second_call
from ptxgym.arguments import whole_number
from ptxgym.build import Build, build
from ptxgym.cache import Cache
from ptxgym.device.protocol import Device, Execution, RunOptions
from ptxgym.dossier import Dossier
from ptxgym.judge.conditions import Case, Conditions, buffers
from ptxgym.judge.judge import Judgement, judge, wants_ablation, with_full_size
from ptxgym.judging import Gate
from ptxgym.plan import LaunchPlan, device_profile, plan_table
from ptxgym.recording import Shape, on_few_sms, recorded, shape
from ptxgym.submission import check_text
from ptxgym.task import Task, load_arch
from ptxgym.verdict import Failure, Finding, Severity, Status, Verdict

ORDERED_FAMILIES = frozenset({"barrier", "cp.async", "mbarrier", "tcgen05", "tma", "wgmma"})
"""Families whose completion a schedule can move; without them every schedule is the fair one."""

FAIR = RunOptions()


@dataclass(frozen=True)
class Gates:
    """What an evaluation holds while it compiles, and while it records, executes and judges; by default nothing."""

    build: AbstractContextManager[object] = field(default_factory=nullcontext)
    run: AbstractContextManager[object] = field(default_factory=nullcontext)

    @classmethod
    def limited(cls, builds: int | None, runs: int | None) -> Gates:
        """Let so many threads in at once; None is no limit.

        Raises:
            UsageError: if a limit is below 1: nothing would ever be judged.
        """
        return cls(_gate("builds", builds), _gate("runs", runs))


def _gate(name: str, limit: int | None) -> AbstractContextManager[object]:
    return nullcontext() if limit is None else Gate(whole_number(name, limit, 1))


@dataclass(frozen=True)
class Setting:
    """What an evaluator keeps the same for all evaluations on the emulator."""

    device: Device
    emulator_revision: str | None
    cache: Cache
    random_schedules: int
    """Adversarial schedules with random completion, beside the lazy one."""
    gates: Gates = field(default_factory=Gates)


@dataclass(frozen=True)
class Emulated:
    """What the emulator came to."""

    result: Judgement | Failure
    case: str = ""
    """The draw on which a failure came, where it is not the first."""
    printed: str = ""
    first: Execution | None = None
    """Of the first draw, once it has been judged."""


def evaluate(text: str, task: Task, arch: str, drawn: Conditions, stress: Case, setting: Setting) -> Verdict:
    """Run every stage on `text`.

    Args:
        text: A whole kernel file, or whatever an agent wrote instead.
        task: What was asked for.
        arch: For which GPU generation.
        drawn: The calls to judge on.
        stress: The small call for adversarial schedules.
        setting: Device, cache, schedules.

    Raises:
        InfrastructureError: if the machine failed; nothing is said about the submission then.
    """
    dossier = Dossier(text, task, arch, drawn.hash)
    with setting.gates.build:
        built = compiled(text, task, arch, setting.cache, dossier)
    if isinstance(built, Failure):
        return dossier.failed(built)
    with setting.gates.run:
        return _ran(built, task, arch, drawn, stress, setting, dossier)


def _ran(
    built: Build, task: Task, arch: str, drawn: Conditions, stress: Case, setting: Setting, dossier: Dossier
) -> Verdict:
    """Record, execute and judge a build."""
    with dossier.timed("plan"):
        shapes = [case.axes for case in (*drawn.cases, stress)]
        plans = recorded(built, task, shapes, device_profile(arch), drawn)
        if isinstance(plans, Failure):
            return dossier.failed(plans)
        if drawn.cases[-1].hidden:
            hidden = drawn.cases[-1].axes
            plans[shape(hidden)] = on_few_sms(built, task, hidden, device_profile(arch), plans)
    shown = plans[shape(drawn.cases[0].axes)]
    dossier.note_plan(shown, plan_table(shown))
    dossier.note_device(setting.device.name, setting.emulator_revision)
    ended = emulated(built, plans, task, arch, drawn, stress, setting, dossier)
    dossier.printed = ended.printed
    if isinstance(ended.result, Failure):
        return dossier.failed(ended.result, ended.case)
    if ended.result.status is not Status.OK or ended.first is None or drawn.workload != "emulation":
        return dossier.judged(ended.result)
    with dossier.timed("full size"):
        whole = full_size.check(built, task, device_profile(arch), drawn, setting.device, ended.first, shown)
    if whole.failure is not None:
        return dossier.failed(whole.failure)
    return dossier.judged(with_full_size(ended.result, whole))


def compiled(text: str, task: Task, arch: str, cache: Cache, dossier: Dossier) -> Build | Failure:
    """Run the stages before the plan: is it a submission, and does it compile?"""
    refused = check_text(text)
    if refused is not None:
        return refused
    with dossier.timed("build"):
        declaration, code = task.signature.declaration(), load_arch(arch).code
        built = build(text, declaration=declaration, arch=code, cache=cache)
    if isinstance(built, Build):
        dossier.note_build(built)
    return built


def emulated(
    built: Build,
    plans: Mapping[Shape, LaunchPlan],
    task: Task,
    arch: str,
    drawn: Conditions,
    stress: Case,
    setting: Setting,
    dossier: Dossier,
) -> Emulated:
    """Run the plans on the emulator and judge them; the dossier takes the durations.

    Raises:
        InfrastructureError: if the emulator failed.
    """
    runner = _Runner(task, built, plans, setting)
    executions: list[Execution] = []
    for case in drawn.cases:
        with dossier.timed("execute"):
            execution = runner.run(case)
        if isinstance(execution, Failure):
            return Emulated(execution, f"draw {case.name}" if executions else "")
        executions.append(execution)
    printed = executions[0].printed
    with dossier.timed("judge"):
        judgement = judge(task, arch, drawn, executions)
    sound = not any(finding.severity is Severity.ERROR for finding in judgement.findings)
    if not sound or judgement.status not in (Status.OK, Status.WRONG_OUTPUT):
        return Emulated(judgement, printed=printed, first=executions[0])

    stressed: list[Execution] = []
    if any(count.family in ORDERED_FAMILIES for count in executions[0].counts):
        for options in _adversarial(setting.random_schedules):
            with dossier.timed("schedules"):
                # The small shape is public: a kernel could take another way there. At the hidden one it is judged.
                execution = runner.run(drawn.cases[-1] if options.schedule == "lazy" else stress, options)
            stressed.append(_warned(execution, options) if isinstance(execution, Failure) else execution)
    ablation = None
    if judgement.status is Status.OK and wants_ablation(task, arch, executions[0]):
        with dossier.timed("ablation"):
            ablation = runner.run(drawn.cases[0], RunOptions(zero_target_results=True))
    with dossier.timed("judge"):
        judgement = judge(task, arch, drawn, executions, schedules=stressed, ablation=ablation)
    if judgement.status is Status.OK and second_call.finds_something(built, plans.values(), judgement):
        with dossier.timed("second call"):
            cases = (stress, *drawn.cases)
            again = second_call.check(built, task, device_profile(arch), cases, setting.device, judgement)
        return Emulated(again, printed=printed, first=executions[0])
    return Emulated(judgement, printed=printed, first=executions[0])


def refuse(failure: Failure, text: str, task: Task, arch: str) -> Verdict:
    """Return the verdict of a submission that a caller refused before the first stage."""
    return Dossier(text, task, arch, None).failed(failure)


class _Runner:
    """Runs the plans of one build."""

    def __init__(self, task: Task, built: Build, plans: Mapping[Shape, LaunchPlan], setting: Setting) -> None:
        self._task = task
        self._built = built
        self._plans = plans
        self._device = setting.device

    def run(self, case: Case, options: RunOptions = FAIR) -> Execution | Failure:
        """Run one call within the task's budget."""
        options = replace(options, warp_instruction_budget=self._task.warp_instruction_budget(case.axes))
        return self._device.run(self._built, self._plans[shape(case.axes)], buffers(self._task, case), options)


def _adversarial(random_schedules: int) -> Iterable[RunOptions]:
    """The latest completion that is allowed, then orders drawn from fixed seeds."""
    yield RunOptions(schedule="lazy")
    for seed in range(1, random_schedules + 1):
        yield RunOptions(schedule="random", seed=seed)


def _warned(failure: Failure, options: RunOptions) -> Execution:
    """Return a run that an adversarial schedule broke off as what it can tell: findings, none of them certain."""
    seen = Finding(
        code=f"schedule.{failure.status}",
        severity=Severity.WARNING,
        message=f"With {options.schedule} completion of asynchronous operations: {failure.message}",
        remedy="Let every wait follow from an arrival that only what it waits for can cause.",
    )
    softened = (
        finding.model_copy(update={"severity": Severity.WARNING}) if finding.severity is Severity.ERROR else finding
        for finding in failure.findings
    )
    return Execution(buffers={}, findings=(seen, *softened))
