"""A verdict as numbers: what of it a policy without language can see."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ptxgym.knobs.template import KnobTemplate
from ptxgym.verdict import OutputError, Severity, Stage, Status, Verdict

STAGES = tuple(Stage)
STATUSES = tuple(status for status in Status if status is not Status.INFRA)
KINDS = (
    "async", "barrier", "cluster", "descriptor", "emulator", "mbarrier", "memory", "proxy", "register", "schedule",
    "smem", "tcgen05", "tma", "tmem", "wgmma", "other",
)  # fmt: skip
"""Findings by the first part of their codes."""
GRAVE = (Severity.ERROR, Severity.WARNING)
"""Findings that count; notes are what fast kernels get away with."""
ERROR_DECADES = 6.0
"""An error a million times its budget, or not finite, counts as the worst."""
SPEED_LOG2 = 5.0
"""Speed-ups from 1/32 to 32."""
MEASURES = (
    "judged", "ladder", "score", "best_score", "relative_error", "worst_tile_error", "closeness", "unwritten",
    "coverage", "target_ok", "speedup", "turns_left",
)  # fmt: skip


def names(template: KnobTemplate) -> tuple[str, ...]:
    """Return what each number of an observation is, in order."""
    chosen = (f"{knob.name}={choice}" for knob in template.knobs for choice in knob.choices)
    return (
        *chosen,
        *(f"stage={stage}" for stage in STAGES),
        *(f"status={status}" for status in STATUSES),
        *(f"findings={kind}" for kind in KINDS),
        *MEASURES,
    )


def ladder(verdict: Verdict) -> float:
    """Return how far a submission came, in [0, 1]: 0 was refused unread, ¼ did not compile, 1 was judged."""
    return STAGES.index(verdict.stage) / (len(STAGES) - 1)


def features(
    template: KnobTemplate,
    action: tuple[int, ...] | None,
    verdict: Verdict | None,
    best_score: float,
    turns_left: float,
) -> NDArray[np.float32]:
    """Return an observation.

    Args:
        template: Whose knobs are turned.
        action: What was chosen last; None before the first turn.
        verdict: What came of it; None before the first turn, and where the machine failed.
        best_score: Of the episode.
        turns_left: As a share of all turns.

    Returns:
        float32 [feature], each in [-1, 1], as `names` has them.
    """
    measures = dict.fromkeys(MEASURES, 0.0)
    measures |= {"best_score": best_score, "turns_left": turns_left}
    counts = dict.fromkeys(KINDS, 0)
    if verdict is not None:
        measures |= _measures(verdict)
        for finding in verdict.findings:
            if finding.severity in GRAVE:
                kind = finding.code.partition(".")[0]
                counts[kind if kind in counts else "other"] += finding.count
    numbers = [
        *(
            float(action is not None and action[at] == choice)
            for at, count in enumerate(template.sizes)
            for choice in range(count)
        ),
        *(float(verdict is not None and verdict.stage is stage) for stage in STAGES),
        *(float(verdict is not None and verdict.status is status) for status in STATUSES),
        *(min(1.0, math.log10(1 + count) / ERROR_DECADES) for count in counts.values()),
        *measures.values(),
    ]
    return np.array(numbers, dtype=np.float32)


def _measures(verdict: Verdict) -> dict[str, float]:
    """Return the measures of the worst output, of the evidence and of the time."""
    found = {"judged": 1.0, "ladder": ladder(verdict), "score": verdict.score}
    if verdict.outputs:
        worst = max(verdict.outputs, key=lambda output: (not output.ok, _decades(output)[0]))
        found["relative_error"], found["worst_tile_error"] = _decades(worst)
        found["closeness"] = worst.closeness
        found["unwritten"] = float(not worst.written)
    if verdict.evidence is not None:
        found["coverage"] = verdict.evidence.coverage
        found["target_ok"] = float(verdict.evidence.target_ok)
    timing = verdict.measured.timing
    if timing is not None:
        found["speedup"] = min(1.0, max(-1.0, math.log2(timing.speedup) / SPEED_LOG2))
    return found


def _decades(output: OutputError) -> tuple[float, float]:
    """Return both errors of an output in decades above their budgets, as shares of `ERROR_DECADES`."""
    return (
        _share(output.relative_error, output.relative_budget),
        _share(output.worst_tile_error, output.tile_budget),
    )


def _share(error: float, budget: float) -> float:
    if not math.isfinite(error) or (budget <= 0 < error):
        return 1.0
    if error <= budget:
        return 0.0
    return min(1.0, math.log10(error / budget) / ERROR_DECADES)
