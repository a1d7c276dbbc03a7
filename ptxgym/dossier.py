"""What is known about one submission while it goes through the stages, and the verdict that it becomes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import ptxgym
from ptxgym.build import Build
from ptxgym.build.demangle import name_functions
from ptxgym.device.cuda.model import Outcome
from ptxgym.judge.judge import JUDGE_REVISION, Judgement
from ptxgym.plan.model import LaunchPlan, normalize_names
from ptxgym.reward import score
from ptxgym.submission import Submission
from ptxgym.task import Task
from ptxgym.verdict import Diagnostic, Failure, KernelProfile, Measured, Provenance, Timing, Verdict


class Dossier:
    """What is known about one submission so far; any stage may be the last."""

    def __init__(self, text: str, task: Task, arch: str, conditions_hash: str | None) -> None:
        self.printed = ""
        self._plan: str | None = None
        self._diagnostics: tuple[Diagnostic, ...] = ()
        self._durations_s: dict[str, float] = {}
        self._timing: Timing | None = None
        self._profile: tuple[KernelProfile, ...] = ()
        self._lock_held_s: float | None = None
        self._provenance = Provenance(
            ptxgym=ptxgym.__version__,
            task=task.name,
            task_revision=task.revision,
            variant=task.variant,
            arch=arch,
            source_sha256=Submission(text).sha256,
            conditions=conditions_hash,
            judge_revision=JUDGE_REVISION,
        )

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the seconds spent inside to the duration of `stage`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.note_duration(stage, time.perf_counter() - start)

    def note_build(self, built: Build) -> None:
        """Record which build is judged, and the compiler's warnings."""
        self._diagnostics = built.diagnostics
        self._update(build_key=built.key, compiler=built.compiler)

    def note_plan(self, plan: LaunchPlan, table: str) -> None:
        """Record what the host code asked for."""
        self._plan = table
        self._update(plan_hash=plan.hash, device_profile=plan.device_profile, isolation=plan.isolation)

    def note_device(self, name: str, emulator_revision: str | None) -> None:
        """Record where the plan runs."""
        self._update(device=name, emulator_revision=emulator_revision)

    def note_gpu(self, name: str, driver: str, tier: str, emulator_revision: str | None) -> None:
        """Record which GPU measures, and with which emulator as witness."""
        self.note_device(name, emulator_revision)
        self._update(driver=driver, tier=tier)

    def note_outcome(self, outcome: Outcome) -> None:
        """Record what a GPU measured beside its judgement."""
        self.printed = outcome.printed
        self._timing, self._profile, self._lock_held_s = outcome.timing, outcome.profile, outcome.lock_held_s
        for stage, seconds in outcome.durations_s.items():
            self.note_duration(stage, seconds)
        self._provenance = self._provenance.model_copy(update={"libraries": dict(outcome.libraries)})

    def note_duration(self, stage: str, seconds: float) -> None:
        """Add to the duration of `stage`."""
        self._durations_s[stage] = self._durations_s.get(stage, 0.0) + seconds

    def failed(self, failure: Failure, case: str = "", notes: tuple[str, ...] = ()) -> Verdict:
        """Close with the failure of a stage, on the call named `case` where it is not the first."""
        message = normalize_names(name_functions(failure.message))
        if case:
            message = f"On {case}: {message}"
        return Verdict(
            stage=failure.stage,
            status=failure.status,
            code=failure.code,
            message=message,
            score=score(failure.status, findings=failure.findings),
            findings=failure.findings,
            diagnostics=failure.diagnostics or self._diagnostics,
            printed=self.printed,
            notes=notes,
            plan=self._plan,
            provenance=self._provenance,
            measured=self._measured(),
        )

    def judged(self, judgement: Judgement) -> Verdict:
        """Close with what the judge found."""
        return Verdict(
            stage=judgement.stage,
            status=judgement.status,
            code=judgement.code,
            message=judgement.message,
            score=judgement.score,
            outputs=judgement.outputs,
            evidence=judgement.evidence,
            findings=judgement.findings,
            diagnostics=self._diagnostics,
            printed=self.printed,
            notes=judgement.notes,
            plan=self._plan,
            provenance=self._provenance,
            measured=self._measured(),
        )

    def _measured(self) -> Measured:
        return Measured(
            durations_s=self._durations_s, timing=self._timing, profile=self._profile, lock_held_s=self._lock_held_s
        )

    def _update(self, **changes: str | None) -> None:
        self._provenance = self._provenance.model_copy(update=changes)
