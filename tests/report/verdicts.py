"""Verdicts made up for the report's fixture: one for each thing that a kernel can come to."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

from ptxgym.verdict import (
    Diagnostic,
    Evidence,
    FamilyCount,
    Finding,
    Measured,
    OutputError,
    Party,
    Provenance,
    Severity,
    Stage,
    Status,
    Timing,
    Verdict,
)


def made_up(draw: random.Random, task: str, arch: str, what: str, source: str, mean_speedup: float) -> Verdict:
    """Return a verdict with that outcome; on Hopper it was measured, on Blackwell emulated."""
    measured = arch == "h100"
    status, stage, code, message = _WORDS[what]
    right, target = status is Status.OK, what == "target"
    never_ran = stage in (Stage.SUBMISSION, Stage.BUILD)
    timing = None
    if right and measured:
        speed = mean_speedup * draw.uniform(0.8, 1.1) if target else 0.004 * draw.uniform(0.9, 1.1)
        timing = Timing(
            speedup=speed, speedup_low=speed * 0.99, speedup_high=speed * 1.01, candidate_us=730 / speed,
            baseline_us=730.0, baseline="cuBLASLt", pairs=24,
        )  # fmt: skip
    share = 0.0 if timing is None else max(0.0, min(1.0, 1 + 0.2 * (timing.speedup - 1) * 3))
    score = {"wrong": 0.1}.get(what, 0.0) if not right else 0.2 if not target else round(0.5 + 0.5 * share, 3)
    errors = {"naive": 1e-3, "target": 1e-3, "wrong": 0.7}
    return Verdict(
        stage=stage,
        status=status,
        code=code,
        message=message,
        score=score,
        outputs=tuple(_output(name, errors[what]) for name in ("dQ", "dK")[: 1 + (task == "attn_bwd")])
        if what in errors
        else (),
        evidence=_evidence(target, measured) if what in errors else None,
        findings=tuple(_findings(what, source)),
        diagnostics=tuple(_diagnostics(what, source)),
        provenance=Provenance(
            ptxgym="0.1.0",
            task=task,
            task_revision=1,
            arch=arch,
            source_sha256=hashlib.sha256(source.encode()).hexdigest(),
            device=None if never_ran else "NVIDIA H200" if measured else "emulator",
            tier="standard" if measured and not never_ran else None,
            judge_revision=5,
            emulator_revision="abc123",
        ),
        measured=Measured(durations_s={"build": 1.0}, timing=timing),
    )


_WORDS = {
    "target": (Status.OK, Stage.JUDGE, "ok", ""),
    "naive": (Status.OK, Stage.JUDGE, "ok.no_target", "Right, but no target instruction did any of the arithmetic."),
    "wrong": (Status.WRONG_OUTPUT, Stage.JUDGE, "wrong_output.tile", "The output is wrong in whole tiles."),
    "hazard": (
        Status.HAZARD, Stage.JUDGE, "async.overwrite",
        "TMA load issued by warp 0 writes shared 0x400, which the wgmma of warpgroup 1 may still be reading.",
    ),
    "hang": (Status.HANG, Stage.EXECUTE, "hang.barrier", "Warp 1 waits for a barrier that nobody completes."),
    "compile": (Status.COMPILE_ERROR, Stage.BUILD, "build.nvcc", "expected a ';'"),
    "cut": (
        Status.REJECTED, Stage.SUBMISSION, "submission.truncated_response",
        "The answer was cut off at the limit of tokens; write less, or raise the limit.",
    ),
    "none": (Status.REJECTED, Stage.SUBMISSION, "submission.no_code", "The answer holds no kernel."),
    "refused": (Status.REJECTED, Stage.SUBMISSION, "submission.no_code", "The answer holds no kernel."),
}  # fmt: skip


def _output(name: str, error: float) -> OutputError:
    wrong = error > 0.01
    return OutputError(
        name=name, ok=not wrong, relative_error=error, relative_budget=4e-3, worst_tile_error=error * 2,
        tile_budget=8e-3, worst_region=f"{name}[128:192, 0:64]" if wrong else None,
        pattern="whole tiles" if wrong else None, explanations=("a tile is transposed",) if wrong else (),
        closeness=0.5 if wrong else 1.0,
    )  # fmt: skip


def _evidence(target: bool, measured: bool) -> Evidence:
    families = {
        "alu": FamilyCount(warp_instructions=41_230, thread_instructions=1_319_360),
        "ld": FamilyCount(warp_instructions=8_192, thread_instructions=262_144),
        "tma": FamilyCount(warp_instructions=512, thread_instructions=512),
    }
    if target:
        families["wgmma"] = FamilyCount(warp_instructions=2_048, thread_instructions=65_536, multiply_adds=1 << 28)
    else:
        families["fma"] = FamilyCount(warp_instructions=90_112, thread_instructions=2_883_584, multiply_adds=1 << 28)
    return Evidence(
        source="ncu" if measured else "emulator", workload="m4096" if measured else "small",
        required_multiply_adds=1 << 28, target_multiply_adds=(1 << 28) * target,
        other_multiply_adds=(1 << 28) * (not target), coverage=float(target), target_ok=target, families=families,
        explanation=None if target else "no wgmma instruction executed; fma did 100 % of the multiply-adds",
    )  # fmt: skip


def _findings(what: str, source: str) -> Iterator[Finding]:
    if what == "hazard":
        lines = source.splitlines()
        load = next(
            (at for at, text in enumerate(lines, start=1) if "tma_load(" in text or "cp.async.bulk" in text), 40
        )
        yield Finding(
            code="async.overwrite", severity=Severity.ERROR, count=608, line=load, message=_WORDS["hazard"][3],
            parties=(
                Party(who="TMA load of warp 0", did="writes 16,384 bytes at shared 0x400", line=load),
                Party(who="wgmma of warpgroup 1", did="reads shared 0x400", line=load + 14),
            ),
            remedy="wgmma.commit_group and wgmma.wait_group before the buffer is released",
        )  # fmt: skip
    if what == "hang":
        yield Finding(code="barrier.incomplete", severity=Severity.ERROR, message="nobody completes it", line=None)


def _diagnostics(what: str, source: str) -> Iterator[Diagnostic]:
    if what == "compile":
        line = next((at for at, text in enumerate(source.splitlines(), start=1) if "," in text), 1)
        yield Diagnostic(severity=Severity.ERROR, message="expected a ';'", line=line, column=3)
        yield Diagnostic(
            severity=Severity.WARNING, message="variable 'row' was declared but never referenced", line=line + 6
        )
