"""The measured branch of the pipeline: the same front, then a GPU, with the emulator as witness beside it.

The emulator runs the same build at its own, small sizes on the CPU while the GPU works. It tells whether the output
depends on the target instructions, and names causes that no hardware shows. Its findings join the feedback and change
no status; but a kernel that is wrong or hazardous there gets no credit for target instructions (`device.cuda.credit`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ptxgym import pipeline
from ptxgym.build import Build
from ptxgym.device.cuda.client import CudaJudge
from ptxgym.device.cuda.counterparts import MATRIX_PTX
from ptxgym.device.cuda.gpu import profile_of
from ptxgym.device.cuda.model import Announced, Outcome, Request, Tier, Witness, signature
from ptxgym.device.cuda.ncu import ncu_obstacle
from ptxgym.dossier import Dossier
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.judge.conditions import Case, Conditions
from ptxgym.judge.judge import Judgement
from ptxgym.plan import LaunchPlan, device_profile, plan_table
from ptxgym.recording import Shape, recorded, shape
from ptxgym.submission import check_text
from ptxgym.task import Task
from ptxgym.verdict import Failure, Finding, Severity, Stage, Status, Verdict

EXTRA_DRAWS: Mapping[Tier, int] = {"rl": 0, "standard": 0, "publish": 2}
"""Draws on which a kernel is timed beyond those of its workload, of each kind."""


@dataclass(frozen=True)
class Setting:
    """What an evaluator keeps the same for all evaluations on a GPU."""

    judge: CudaJudge
    tier: Tier
    emulator: pipeline.Setting
    """Of the witness; its cache is also that of builds."""


@dataclass(frozen=True)
class Drawn:
    """The calls of one evaluation."""

    measured: Conditions
    timing: tuple[Case, ...]
    """On which it is timed: all of the shape of the first measured one."""
    emulated: Conditions
    stress: Case


def evaluate(text: str, task: Task, arch: str, drawn: Drawn, setting: Setting) -> Verdict:
    """Run every stage on `text`; see `pipeline.evaluate`.

    Raises:
        InfrastructureError: if the machine failed; nothing is said about the submission then.
        UsageError: if the tier cannot be had on this machine.
    """
    if setting.tier == "publish" and (obstacle := ncu_obstacle()) is not None:  # before minutes of work, not after
        raise UsageError(
            f"tier publish needs Nsight Compute: {obstacle.reason}; {obstacle.fix or 'see `ptxgym doctor`'}; or use "
            "tier standard, whose evidence then comes from the emulator"
        )
    dossier = Dossier(text, task, arch, drawn.measured.hash)
    refused = check_text(text)
    if refused is not None:
        return dossier.failed(refused)
    with setting.judge.expected(Announced(setting.tier, task, drawn.measured.cases)) as measure:
        with setting.emulator.gates.build:
            built = pipeline.compiled(text, task, arch, setting.emulator.cache, dossier)
        if isinstance(built, Failure):
            return dossier.failed(built)
        with setting.emulator.gates.run:
            return _measured(built, task, arch, drawn, setting, dossier, measure)


def _measured(
    built: Build,
    task: Task,
    arch: str,
    drawn: Drawn,
    setting: Setting,
    dossier: Dossier,
    measure: Callable[[Request, Future[Witness]], Outcome],
) -> Verdict:
    """Record a build, run and time it, with the emulator as witness."""
    gpu = setting.judge.gpu
    with dossier.timed("plan"):
        shapes = [case.axes for case in (*drawn.measured.cases, drawn.stress)]
        plans = recorded(built, task, shapes, profile_of(gpu), drawn.measured)
    if isinstance(plans, Failure):
        return dossier.failed(plans)
    shown = plans[shape(drawn.measured.cases[0].axes)]
    dossier.note_plan(shown, plan_table(shown))
    dossier.note_gpu(gpu.name, gpu.driver, setting.tier, setting.emulator.emulator_revision)
    request = Request(
        task, arch, setting.tier, drawn.measured, drawn.timing, drawn.stress, built, tuple(plans.values())
    )
    with ThreadPoolExecutor(1, "witness") as beside:
        witness = beside.submit(_witness, built, task, arch, drawn, setting.emulator, dossier)
        with dossier.timed("measure"):
            outcome = measure(request, witness)
        return _verdict(outcome, witness, dossier)


def _verdict(outcome: Outcome, witness: Future[Witness], dossier: Dossier) -> Verdict:
    """Join what the GPU said and what the emulator names as causes."""
    said = witness.result()
    dossier.note_outcome(outcome)
    result = outcome.result
    findings = (*result.findings, *causes(said))
    if isinstance(result, Failure):
        failure = result.model_copy(update={"findings": findings})
        return dossier.failed(failure, outcome.case and f"draw {outcome.case}", outcome.notes)
    notes = (*result.notes, *outcome.notes, *_agreement(result, said))
    return dossier.judged(result.model_copy(update={"findings": findings, "notes": notes}))


def causes(witness: Witness) -> tuple[Finding, ...]:
    """Return what the emulator found, marked as its own; where it failed, that failure first."""
    found = [finding.model_copy(update={"source": "emulator"}) for finding in witness.result.findings]
    failed = witness.result if isinstance(witness.result, Failure) else None
    if failed is not None and witness.ran and not any(finding.code == failed.code for finding in found):
        cause = Finding(code=failed.code, severity=Severity.ERROR, message=failed.message, source="emulator")
        return (cause, *found)
    return tuple(found)


def _agreement(judgement: Judgement, witness: Witness) -> tuple[str, ...]:
    """Say where GPU and emulator disagree about the numbers."""
    if judgement.status is Status.WRONG_OUTPUT and witness.status is Status.OK:
        return ("why it is wrong: on the emulator, at its own smaller sizes, the kernel is right",)
    return ()


def _witness(built: Build, task: Task, arch: str, drawn: Drawn, setting: pipeline.Setting, dossier: Dossier) -> Witness:
    """Run the build on the emulator; whatever goes wrong there is said, and stops nothing."""
    start = time.perf_counter()
    try:
        shapes = [case.axes for case in (*drawn.emulated.cases, drawn.stress)]
        plans = recorded(built, task, shapes, device_profile(arch), drawn.emulated)
        if isinstance(plans, Failure):
            return Witness(plans)
        apart = Dossier("", task, arch, drawn.emulated.hash)
        ended = pipeline.emulated(built, plans, task, arch, drawn.emulated, drawn.stress, setting, apart)
        counts = ended.first.counts if ended.first is not None else ()
        matrix = tuple(count for count in counts if count.form.startswith(MATRIX_PTX))
        return Witness(ended.result, signature(_first(plans, drawn.emulated)), matrix)
    except InfrastructureError as error:
        message = f"the emulator failed: {str(error).splitlines()[0]}"
        return Witness(Failure(stage=Stage.EXECUTE, status=Status.INFRA, code="emulator.failed", message=message))
    finally:
        dossier.note_duration("emulator", time.perf_counter() - start)


def _first(plans: Mapping[Shape, LaunchPlan], conditions: Conditions) -> LaunchPlan:
    return plans[shape(conditions.cases[0].axes)]
