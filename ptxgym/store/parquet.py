"""A run as one Parquet file, a row a turn: for data frames and trainers. Needs pyarrow (the extra `parquet`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.store.lines import to_json
from ptxgym.store.reader import StoredRun, read_run
from ptxgym.store.records import EpisodeRecord, TurnRecord
from ptxgym.verdict import Status

FILE = "turns.parquet"


def write_parquet(folder: str | Path) -> Path:
    """Write `turns.parquet` into the folder of a run, and return its path.

    A row holds the turn, its episode's environment, agent, arm and status, what is asked for most of its verdict in
    columns of their own, and the whole verdict as JSON. Turns of episodes that have not ended have no status.

    Raises:
        UsageError: if pyarrow is not installed, or the folder holds no run.
        InfrastructureError: if the file cannot be written.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow: pip install 'ptxgym[parquet]'") from error
    stored = read_run(folder)
    path = stored.folder / FILE
    beside = path.with_name(f".{FILE}.{os.getpid()}")
    metadata = {"ptxgym.run": to_json(stored.record)}
    table = pa.Table.from_pylist(rows(stored), schema=_schema(pa).with_metadata(metadata))
    try:
        parquet.write_table(table, beside, compression="zstd")
        beside.rename(path)
    except OSError as error:
        raise InfrastructureError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def rows(stored: StoredRun) -> list[dict[str, Any]]:
    """Return the turns of a run as plain values by column."""
    episodes = {episode.id: episode for episode in stored.episodes}
    return [_row(turn, episodes.get(turn.episode)) for turn in stored.turns]


def _row(turn: TurnRecord, episode: EpisodeRecord | None) -> dict[str, Any]:
    verdict, usage, tokens = turn.verdict, turn.usage, turn.tokens
    evidence, timing = verdict.evidence, verdict.measured.timing
    found: dict[str, Any] = {
        "episode": turn.episode,
        "env": episode and episode.env,
        "variant": verdict.provenance.variant,
        "arch": verdict.provenance.arch,
        "agent": episode and episode.agent,
        "arm": episode and episode.arm,
        "trajectory": episode and episode.trajectory,
        "seed": episode and episode.seed,
        "episode_status": episode and episode.status,
        "turn": turn.turn,
        "parent_turn": turn.parent_turn,
        "model": turn.model,
        "messages": [{"role": each.role, "content": each.content} for each in turn.messages],
        "response": turn.response,
        "reasoning": turn.reasoning,
        "finish_reason": turn.finish_reason,
        "refused": turn.refused,
        "source": turn.source,
        "feedback": turn.feedback,
        "status": str(verdict.status),
        "code": verdict.code,
        "correct": verdict.status is Status.OK,
        "target_ok": verdict.status is Status.OK and evidence is not None and evidence.target_ok,
        "coverage": evidence and evidence.coverage,
        "speedup": timing and timing.speedup,
        "score": turn.score,
        "reward": turn.reward,
        "best_score": turn.best_score,
        "terms": list(turn.terms.items()),
        "done": turn.done,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "cost_usd": usage.cost_usd,
        "prompt_ids": list(tokens.prompt_ids) if tokens else None,
        "completion_ids": list(tokens.completion_ids) if tokens else None,
        "completion_logprobs": list(tokens.completion_logprobs) if tokens else None,
        "started_at": turn.started_at,
        "model_s": turn.model_s,
        "evaluate_s": turn.evaluate_s,
        "verdict": to_json(verdict),
        "tags": list(turn.tags.items()),
    }
    return {name: _encodable(value) for name, value in found.items()}


def _encodable(value: Any) -> Any:
    """Return texts without lone surrogates, which a model may write and no UTF-8 holds: they become escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {name: _encodable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(item) for item in value] if isinstance(value, list) else tuple(map(_encodable, value))
    return value


def _schema(pa: Any) -> Any:
    text, number, whole, flag = pa.string(), pa.float64(), pa.int64(), pa.bool_()
    types = {
        "messages": pa.list_(pa.struct([("role", text), ("content", text)])),
        "terms": pa.map_(text, number),
        "tags": pa.map_(text, text),
        **dict.fromkeys(("prompt_ids", "completion_ids"), pa.list_(whole)),
        "completion_logprobs": pa.list_(number),
        **dict.fromkeys(("refused", "correct", "target_ok", "done"), flag),
        **dict.fromkeys(("coverage", "speedup", "score", "reward", "best_score", "cost_usd"), number),
        **dict.fromkeys(("model_s", "evaluate_s"), number),
        **dict.fromkeys(("trajectory", "seed", "turn", "parent_turn"), whole),
        **dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"), whole),
    }
    return pa.schema([(name, types.get(name, text)) for name in COLUMNS])


COLUMNS = (
    "episode", "env", "variant", "arch", "agent", "arm", "trajectory", "seed", "episode_status", "turn", "parent_turn",
    "model", "messages", "response", "reasoning", "finish_reason", "refused", "source", "feedback", "status", "code",
    "correct", "target_ok", "coverage", "speedup", "score", "reward", "best_score", "terms", "done", "prompt_tokens",
    "cached_tokens", "completion_tokens", "reasoning_tokens", "cost_usd", "prompt_ids", "completion_ids",
    "completion_logprobs", "started_at", "model_s", "evaluate_s", "verdict", "tags",
)  # fmt: skip
