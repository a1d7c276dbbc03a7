"""A run as Parquet: every turn a row, every record's value in it, read by pyarrow itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ptxgym.errors import UsageError
from ptxgym.store.parquet import write_parquet
from ptxgym.store.records import Message, RunRecord, TokenTrace, Usage
from ptxgym.store.writer import RunWriter
from ptxgym.verdict import Status, Verdict
from tests.store.samples import episode, front, turn, verdict


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunWriter.begin(tmp_path / "run", front(), "s") as run:
        fast = verdict(target=True, speedup=0.7)
        trace = TokenTrace(prompt_ids=(1, 2), completion_ids=(3,), completion_logprobs=(-0.5,))
        run.turn(turn("e", 1, verdict(Status.WRONG_OUTPUT), response="half a \ud83d pair", tags={"a": "b"}))
        run.turn(turn("e", 2, fast, parent_turn=1, tokens=trace, usage=Usage(prompt_tokens=9, cost_usd=0.25)))
        run.turn(turn("unfinished", 1))
        run.episode(episode("e", turns=2, arm="full"))
    return tmp_path / "run"


def test_rows_hold_what_the_records_hold(run: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(write_parquet(run))
    first, second, third = table.to_pylist()
    assert first["response"] == "half a \\ud83d pair"
    assert (first["status"], first["correct"], first["target_ok"], first["speedup"]) == (
        "wrong_output",
        *[False] * 2,
        None,
    )
    assert dict(first["tags"]) == {"a": "b"} and first["prompt_ids"] is None
    assert [(row["turn"], row["parent_turn"]) for row in (first, second)] == [(1, None), (2, 1)]
    assert (second["target_ok"], second["speedup"], second["score"], second["cost_usd"]) == (True, 0.7, 0.5, 0.25)
    assert (second["prompt_ids"], second["completion_ids"], second["completion_logprobs"]) == ([1, 2], [3], [-0.5])
    assert (second["env"], second["arm"], second["episode_status"]) == ("ptxgym/Gemm-H100-v1", "full", "done")
    assert second["messages"] == [Message(role="user", content="write").model_dump()]
    assert dict(second["terms"]) == {"score": 0.5}
    assert Verdict.model_validate(json.loads(second["verdict"])) == verdict(target=True, speedup=0.7)
    assert (third["episode"], third["episode_status"], third["agent"]) == ("unfinished", None, None)
    assert RunRecord.model_validate_json(table.schema.metadata[b"ptxgym.run"]) == front()


def test_every_column_is_declared(run: Path) -> None:
    from ptxgym.store.parquet import COLUMNS, rows
    from ptxgym.store.reader import read_run

    assert {tuple(row) for row in rows(read_run(run))} == {COLUMNS}


def test_without_pyarrow_the_way_out_is_said(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'ptxgym\[parquet\]'"):
        write_parquet(run)
    assert not (run / "turns.parquet").exists()
