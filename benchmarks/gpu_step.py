"""Time of a turn on a GPU, stage by stage, then of many at once.

    python benchmarks/gpu_step.py [--tiers rl standard publish] [--kernels oracle wgmma mma_sync naive] [--out FILE]
    python benchmarks/gpu_step.py --device emulator --tiers rl --kernels naive --count 2     # a rehearsal without a GPU

First every kernel in every tier: as a text that no cache has seen, at once again with its build cached, and once more
after a pause such as a model takes to answer. Then new texts at full rate from several threads. Aims: 5 s for a new
text in `standard`, 3 s with its build cached, at most 1 s of the GPU to itself, 20 turns a minute in `standard` and 40
in `rl`. Where one is missed, the stages say where the time goes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from ptxgym.cache import Cache
from ptxgym.evaluator import Evaluator
from ptxgym.task import load_task
from ptxgym.verdict import Verdict
from tests.gpu.report import Report, Row, arguments, median, no_gpu, say, table, timing_of
from tests.gpu.small import new_text

COLD_AIM_S, CACHED_AIM_S, LOCK_AIM_S = 5.0, 3.0, 1.0
PAUSE_S = 5.0
"""In which the judge starts a profiler that nobody has asked for yet."""
RATE_AIMS = {"standard": 20.0, "rl": 40.0}
"""Turns a minute."""
RATE_KERNELS = ("oracle", "wgmma", "wgmma", "mma_sync")
"""What a group of rollouts is like: target-executing kernels mostly."""


def sources() -> dict[str, str]:
    """Return the proven kernels by name."""
    task = load_task("gemm")
    return {Path(s.file).stem: task.source(s) for s in task.solutions["h100"]}


def turn(evaluator: Evaluator, text: str) -> tuple[float, Verdict]:
    started = time.perf_counter()
    verdict = evaluator.evaluate(text, "gemm", "h100")
    return time.perf_counter() - started, verdict


def described(wall_s: float, verdict: Verdict) -> Row:
    """Return what a turn's row holds."""
    measured = verdict.measured
    return {
        "wall_s": round(wall_s, 3),
        "lock_s": measured.lock_held_s,
        "good": verdict.status == "ok",
        "status": verdict.status.value,
        "code": verdict.code,
        "message": verdict.message[:200],
        "score": verdict.score,
        "notes": list(verdict.notes),
        **timing_of(verdict),
        "stages": {stage: round(s, 3) for stage, s in measured.durations_s.items()},
    }


def single_turns(evaluator: Evaluator, report: Report, tier: str, kernels: Iterable[str]) -> None:
    """Time every kernel as a new text, and again with its build cached but its verdict forgotten."""
    known = sources()

    def both(name: str) -> Row:
        text = new_text(known[name])
        cold = described(*turn(evaluator, text))
        evaluator._verdicts.clear()
        at_once = described(*turn(evaluator, text))
        evaluator._verdicts.clear()
        time.sleep(PAUSE_S if tier != "rl" else 0.0)
        cached = described(*turn(evaluator, text))
        return {
            "tier": tier,
            "kernel": name,
            "good": cold["good"],
            "cold": cold,
            "at once": at_once,
            "cached": cached,
        }

    report.each([(f"turn {tier} {name}", name) for name in kernels], both)


def full_rate(evaluator: Evaluator, report: Report, tier: str, count: int, workers: int) -> None:
    """Judge `count` new texts, several at once."""
    known = sources()
    texts = [new_text(known[RATE_KERNELS[number % len(RATE_KERNELS)]]) for number in range(count)]
    started = time.perf_counter()
    own = Report("rate", None, report.seconds_left)
    own.each(
        [(str(number), text) for number, text in enumerate(texts)],
        lambda text: described(*turn(evaluator, text)),
        workers,
    )
    report.stuck |= own.stuck
    seconds = time.perf_counter() - started
    rows = [row for row in own.rows.values() if "wall_s" in row]
    report.add(f"turns {tier}", good=True, rows=rows)
    stages = {stage for row in rows for stage in row["stages"]}
    report.add(
        f"rate {tier}",
        good=all(row["good"] for row in own.rows.values()),
        tier=tier,
        turns=len(rows),
        workers=workers,
        seconds=round(seconds, 2),
        per_minute=round(60 * len(rows) / seconds, 1),
        median_wall_s=median(row["wall_s"] for row in rows),
        stages={stage: median(row["stages"].get(stage, 0.0) for row in rows) for stage in sorted(stages)},
        problems=[
            row.get("problem") or f"{row['code']}: {row['message']}" for row in own.rows.values() if not row["good"]
        ],
    )


def show_turns(rows: list[Row]) -> None:
    columns = ["tier", "kernel", "new s", "at once s", "cached s", "lock s", "status", "speed-up", "±%"]
    shown: list[list[Any]] = []
    for row in rows:
        if "cold" not in row:
            say(f"  {row['key']}: {row.get('problem')}")
            continue
        cold, cached = row["cold"], row["cached"]
        width = 50 * (cold["high"] - cold["low"]) / cold["speedup"] if "speedup" in cold else None
        shown.append(
            [
                row["tier"],
                row["kernel"],
                cold["wall_s"],
                row["at once"]["wall_s"],
                cached["wall_s"],
                cold["lock_s"],
                cold["code"],
                cold.get("speedup"),
                width,
            ]
        )
    say(table(columns, shown))
    say("\nwhere the time goes (seconds; stages overlap: the emulator and Nsight Compute run beside the rest)")
    for row in rows:
        for kind in ("cold", "at once", "cached"):
            if kind in row:
                stages = ", ".join(f"{stage} {s:.2f}" for stage, s in row[kind]["stages"].items())
                say(f"  {row['tier']:9}{row['kernel']:10}{kind:7} {row[kind]['wall_s']:6.2f}: {stages}")


def aims(rows: dict[str, Row]) -> list[list[Any]]:
    """Return every aim with what was measured."""
    found: list[list[Any]] = []
    for row in rows.values():
        if row.get("tier") == "standard" and row.get("kernel") == "oracle" and "cold" in row:
            lock_s = max(row[kind]["lock_s"] or 0.0 for kind in ("cold", "at once", "cached"))
            found.append(
                [
                    "oracle, new text, standard: s",
                    COLD_AIM_S,
                    row["cold"]["wall_s"],
                    row["cold"]["wall_s"] <= COLD_AIM_S,
                ]
            )
            found.append(
                [
                    "the same, build cached: s",
                    CACHED_AIM_S,
                    row["cached"]["wall_s"],
                    row["cached"]["wall_s"] <= CACHED_AIM_S,
                ]
            )
            found.append(["GPU to itself: s", LOCK_AIM_S, lock_s, lock_s <= LOCK_AIM_S])
        if "per_minute" in row and row["tier"] in RATE_AIMS:
            aim = RATE_AIMS[row["tier"]]
            found.append([f"new texts a minute, {row['tier']}", aim, row["per_minute"], row["per_minute"] >= aim])
    return found


def main() -> None:
    parser = arguments(__doc__, 140, device="cuda")
    parser.add_argument("--tiers", nargs="*", default=["standard", "rl"], choices=("rl", "standard", "publish"))
    parser.add_argument(
        "--kernels", nargs="*", default=["oracle", "wgmma", "mma_sync", "naive"], choices=sorted(sources())
    )
    parser.add_argument("--rate-tiers", nargs="*", default=["standard", "rl"], choices=("rl", "standard", "publish"))
    parser.add_argument("--count", type=int, default=24, help="texts at full rate, per tier")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="evaluations at once")
    options = parser.parse_args()
    if no_gpu(options.device):
        return
    report = Report("gpu_step", options.out, options.limit_s)
    report.state(cores=os.cpu_count(), cache=str(Cache().root))
    for tier in dict.fromkeys([*options.tiers, *options.rate_tiers]):
        with Evaluator(options.device, tier=tier) as evaluator:
            wall_s, verdict = turn(evaluator, new_text(sources()["oracle"]))  # starts the judge, times the baselines
            report.add(f"first {tier}", good=verdict.status == "ok", tier=tier, first=described(wall_s, verdict))
            if tier in options.tiers:
                single_turns(evaluator, report, tier, options.kernels)
            if tier in options.rate_tiers:
                full_rate(evaluator, report, tier, options.count, options.workers)
    rows = report.rows
    show_turns([row for key, row in rows.items() if key.startswith("turn ")])
    for key, row in rows.items():
        if key.startswith("rate "):
            stages = ", ".join(f"{stage} {s:.2f}" for stage, s in row["stages"].items())
            rate = f"{row['turns']} new texts, {row['workers']} at once, {row['tier']}: {row['per_minute']} a minute"
            say(f"\n{rate}; one takes {row['median_wall_s']} s: {stages}")
            for problem in row["problems"]:
                say(f"  {problem}")
        if key.startswith("first "):
            say(f"first turn of a session, {row['tier']}: {row['first']['wall_s']} s")
    found = aims(rows)
    say("\n" + table(["aim", "at", "measured", "met"], found))
    report.end(0 if all(row[-1] for row in found) and all(row["good"] for row in rows.values()) else 1)


if __name__ == "__main__":
    main()
