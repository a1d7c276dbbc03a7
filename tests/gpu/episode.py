"""An episode of three turns, as an agent lives through it: a naive kernel, one on tensor cores, the best one known.

python -m tests.gpu.episode [--out FILE] [--lines 40]       # on a Hopper GPU: with times and Nsight Compute's words
python -m tests.gpu.episode --device emulator               # without
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium as gym

import ptxgym  # noqa: F401  registers the environments
from ptxgym.task import load_task
from ptxgym.verdict import Verdict
from tests.gpu.report import Report, Row, arguments, no_gpu, say, table, timing_of

ENV = "PTX-Gemm-H100"
TURNS = {
    "naive": "Right first: one thread per element.",
    "wgmma": "Tensor cores, fed by TMA.",
    "oracle": "Persistent, ordered for L2, stores that overlap.",
}


def shortened(text: str, lines: int) -> str:
    """Return the first lines of a feedback, and how many are left out."""
    kept = text.splitlines()
    more = len(kept) - lines
    return "\n".join([*kept[:lines], *([f"… {more} lines more"] if more > 0 else [])])


def played(env: Any, text: str, lines: int) -> Row:
    """Take one turn; return its row."""
    started = time.perf_counter()
    observation, reward, terminated, truncated, info = env.step(text)
    seconds = time.perf_counter() - started
    verdict: Verdict | None = info.get("verdict")
    say(shortened(observation["feedback"], lines))
    row: Row = {
        "good": not truncated and verdict is not None and verdict.status == "ok",
        "turn_s": round(seconds, 2),
        "score": info["score"],
        "reward": float(reward),
        "terminated": bool(terminated),
        "feedback": observation["feedback"],
    }
    if verdict is not None:
        evidence = verdict.evidence
        row |= {
            "code": verdict.code,
            "coverage": evidence.coverage if evidence else None,
            "source": evidence.source if evidence else None,
            "profile": [kernel.model_dump(mode="json") for kernel in verdict.measured.profile],
            "device": verdict.provenance.device,
            **timing_of(verdict),
        }
    return row


def main() -> int:
    parser = arguments(__doc__, 150, device="cuda")
    parser.add_argument("--lines", type=int, default=40, help="lines of feedback that are printed per turn")
    options = parser.parse_args()
    if no_gpu(options.device):
        return 0
    task, report = load_task("gemm"), Report("episode", options.out, options.limit_s)
    sources = {Path(s.file).stem: task.source(s) for s in task.solutions["h100"]}
    env = gym.make(ENV, device=options.device, turns=len(TURNS))
    observation, _ = env.reset(seed=0)
    report.state(env=ENV, device=options.device, prompt_bytes=len(observation["prompt"].encode()))
    for number, (name, intent) in enumerate(TURNS.items(), 1):
        say(f"\n── turn {number}: {name}. {intent}")
        report.add(name, **played(env, sources[name], options.lines))
    env.close()
    columns = ["turn", "code", "coverage", "counted by", "µs", "speed-up", "low", "high", "score", "reward", "seconds"]
    rows = [
        [
            name, row.get("code"), row.get("coverage"), row.get("source"), row.get("us"), row.get("speedup"),
            row.get("low"), row.get("high"), row["score"], row["reward"], row["turn_s"],
        ]
        for name, row in report.rows.items()
    ]  # fmt: skip
    say("\n" + table(columns, rows))
    return 0 if all(row["good"] for row in report.rows.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
