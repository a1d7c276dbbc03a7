"""The oracle of every task at the size that is timed: is it right, on target instructions, and how fast?

    python -m tests.gpu.oracles [--tasks gemm attn_fwd …] [--tier standard] [--out FILE]

Aims: `ok`, coverage of at least 0.95 by Nsight Compute's counts, at least 0.3 of the best library's speed.
"""

from __future__ import annotations

import time
from typing import Any

from ptxgym.content import find
from ptxgym.evaluator import Evaluator
from ptxgym.task import Task, load_task, oracle
from tests.gpu.report import Report, Row, arguments, no_gpu, say, table, timing_of
from tests.gpu.small import new_text

ARCH = "h100"
COVERAGE_AIM, SPEEDUP_AIM = 0.95, 0.3


def judged(evaluator: Evaluator, task: Task, device: str) -> Row:
    """Evaluate a task's oracle as a text that was never seen; return its row."""
    started = time.perf_counter()
    verdict = evaluator.evaluate(new_text(task.source(oracle(task, ARCH))), task, ARCH)
    evidence, timing = verdict.evidence, verdict.measured.timing
    row: Row = {
        "wall_s": round(time.perf_counter() - started, 2),
        "code": verdict.code,
        "message": verdict.message[:300],
        "score": verdict.score,
        "coverage": evidence.coverage if evidence else None,
        "counted_by": evidence.source if evidence else None,
        "notes": list(verdict.notes),
        "lock_s": verdict.measured.lock_held_s,
        "stages": {stage: round(s, 2) for stage, s in verdict.measured.durations_s.items()},
        "profile": [kernel.model_dump(mode="json") for kernel in verdict.measured.profile],
        **timing_of(verdict),
    }
    if timing is not None:
        flops = task.flops(task.workloads["hardware"].axes)
        row |= {
            "baseline": timing.baseline,
            "baselines_us": {one.name: one.time_us for one in timing.baselines},
            "tflops": round(flops / timing.candidate_us / 1e6, 1),
        }
    counted = evidence is not None and evidence.coverage >= COVERAGE_AIM
    fast = device != "cuda" or (timing is not None and timing.speedup >= SPEEDUP_AIM)
    row["good"] = verdict.status == "ok" and counted and fast
    return row


def shown(report: Report) -> None:
    """Print one line per task, and what the slow ones wait for."""
    columns = [
        "task",
        "code",
        "coverage",
        "counted by",
        "µs",
        "TFLOP/s",
        "speed-up",
        "low",
        "high",
        "over",
        "s",
        "aims",
    ]
    keys = ("code", "coverage", "counted_by", "us", "tflops", "speedup", "low", "high", "baseline", "wall_s", "good")
    rows: list[list[Any]] = [[name, *(row.get(key) for key in keys)] for name, row in report.rows.items()]
    say(table(columns, rows))
    for name, row in report.rows.items():
        if not row["good"]:
            say(f"  {name}: {row.get('problem') or row['message']}; {'; '.join(row.get('notes', []))}")
        if "stages" in row:
            say(f"  {name}: " + ", ".join(f"{stage} {s:.2f}" for stage, s in row["stages"].items()))
        for baseline, time_us in row.get("baselines_us", {}).items():
            say(f"  {name}: {baseline} {time_us:.1f} µs")


def main() -> None:
    tasks = [name for name in sorted(find("tasks")) if ARCH in load_task(name).solutions]
    parser = arguments(__doc__, 150, device="cuda", tier="standard")
    parser.add_argument("--tasks", nargs="*", default=tasks, choices=tasks)
    options = parser.parse_args()
    if no_gpu(options.device):
        return
    report = Report("oracles", options.out, options.limit_s)
    tier = {"tier": options.tier} if options.device == "cuda" else {}
    with Evaluator(options.device, **tier) as evaluator:
        report.each(
            [(name, load_task(name)) for name in options.tasks],
            lambda task: judged(evaluator, task, options.device),
        )
    shown(report)
    report.end(0 if all(row["good"] for row in report.rows.values()) else 1)


if __name__ == "__main__":
    main()
