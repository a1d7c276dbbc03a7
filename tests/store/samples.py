"""Records made up for tests."""

from __future__ import annotations

from typing import Any

from ptxgym.store.records import EpisodeRecord, Message, RunRecord, TurnRecord, Usage
from ptxgym.verdict import Evidence, Measured, Provenance, Stage, Status, Timing, Verdict


def verdict(status: Status = Status.OK, target: bool = False, speedup: float | None = None, **changes: Any) -> Verdict:
    """A verdict with the parts that records and metrics look at."""
    timing = None
    if speedup is not None:
        timing = Timing(
            speedup=speedup, speedup_low=speedup, speedup_high=speedup, candidate_us=1.0, baseline_us=speedup,
            baseline="cuBLAS",
        )  # fmt: skip
    evidence = Evidence(
        source="emulator", workload="emulation", required_multiply_adds=1, target_multiply_adds=int(target),
        other_multiply_adds=int(not target), coverage=float(target), target_ok=target, families={},
    )  # fmt: skip
    parts: dict[str, Any] = {
        "stage": Stage.JUDGE,
        "status": status,
        "code": str(status),
        "message": "",
        "score": (0.5 if target else 0.2) if status is Status.OK else 0.0,
        "evidence": evidence if status is Status.OK else None,
        "measured": Measured(timing=timing),
        "provenance": Provenance(
            ptxgym="0", task="gemm", task_revision=1, arch="h100", source_sha256="0",
            device=None if status is Status.COMPILE_ERROR else "emulator" if speedup is None else "NVIDIA H200",
            tier=None if speedup is None else "standard",
        ),
    }  # fmt: skip
    return Verdict(**{**parts, **changes})


def turn(episode: str = "e", number: int = 1, found: Verdict | None = None, **changes: Any) -> TurnRecord:
    found = found or verdict()
    parts: dict[str, Any] = {
        "episode": episode,
        "turn": number,
        "messages": (Message(role="user", content="write"),),
        "response": "answer",
        "source": "kernel",
        "verdict": found,
        "feedback": "fine",
        "score": found.score,
        "reward": found.score,
        "terms": {"score": found.score},
        "best_score": found.score,
        "done": False,
        "started_at": "2026-01-01T00:00:00+00:00",
    }
    return TurnRecord(**{**parts, **changes})


def episode(id: str = "e", **changes: Any) -> EpisodeRecord:
    parts: dict[str, Any] = {
        "id": id, "env": "ptxgym/Gemm-H100-v1", "variant": "base", "agent": "a", "arm": "none", "trajectory": 0,
        "seed": 1, "status": "done", "turns": 1, "best_score": 0.5, "best_turn": 1,
        "usage": Usage(prompt_tokens=100, completion_tokens=50, cost_usd=0.5),
        "started_at": "2026-01-01T00:00:00+00:00", "ended_at": "2026-01-01T00:00:01+00:00",
    }  # fmt: skip
    return EpisodeRecord(**{**parts, **changes})


def front(**changes: Any) -> RunRecord:
    parts: dict[str, Any] = {
        "name": "test", "created_at": "2026-01-01T00:00:00+00:00", "sweep_sha256": "0", "sweep": {},
        "prompts_sha256": {}, "device": "emulator", "versions": {}, "conditions_sha256": "0", "canary": "canary",
    }  # fmt: skip
    return RunRecord(**{**parts, **changes})
