"""A run's folder: written once, read while it goes on, opened by one process at a time."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ptxgym.errors import ContentError, UsageError
from ptxgym.store.lines import to_json
from ptxgym.store.lock import FolderLock
from ptxgym.store.reader import read_run
from ptxgym.store.records import Remeasurement
from ptxgym.store.writer import RunWriter, stored_secret
from ptxgym.verdict import Status
from tests.store.samples import episode, front, turn, verdict


def test_a_run_comes_back_as_it_was_written(tmp_path: Path) -> None:
    with RunWriter.begin(tmp_path / "run", front(), "the secret") as run:
        run.turn(turn("e", 1, verdict(Status.WRONG_OUTPUT)))
        run.turn(turn("e", 2, verdict(target=True, speedup=0.7)))
        run.turn(turn("other", 1))
        run.episode(episode("e", turns=2))
        run.remeasured(
            Remeasurement(episode="e", turn=2, epoch=1, verdict=verdict(target=True), measured_at="2026-01-01")
        )
    stored = read_run(tmp_path / "run")
    assert stored.record == front()
    assert stored.episodes == (episode("e", turns=2),)
    assert [found.turn for found in stored.turns_of("e")] == [1, 2]
    assert stored.turns_of("e")[1].verdict == verdict(target=True, speedup=0.7)
    assert [found.turn for found in stored.remeasured] == [2]
    assert stored_secret(tmp_path / "run") == "the secret"
    assert (tmp_path / "run" / "secret").stat().st_mode & 0o777 == 0o600
    assert "the secret" not in "".join(path.read_text() for path in (tmp_path / "run").glob("*.json*"))


def test_a_turn_on_record_stays_and_the_last_word_on_an_episode_counts(tmp_path: Path) -> None:
    with RunWriter.begin(tmp_path, front(), "s") as run:
        run.turn(turn("e", 1, response="first"))
        run.turn(turn("e", 1, response="again"))
        run.episode(episode("e", status="infra", problem="no answer"))
    with RunWriter(tmp_path) as run:
        assert [found.status for found in run.stored.episodes] == ["infra"]
        run.turn(turn("e", 1, response="after a kill"))
        run.turn(turn("e", 2))
        run.episode(episode("e"))
    stored = read_run(tmp_path)
    assert [found.response for found in stored.turns] == ["first", "answer"]
    assert [found.status for found in stored.episodes] == ["done"]
    assert len((tmp_path / "turns.jsonl").read_text().splitlines()) == 2


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    with RunWriter.begin(tmp_path, front(), "s"):
        with pytest.raises(UsageError, match="another process writes"):
            RunWriter(tmp_path)
        assert read_run(tmp_path).episodes == ()
    RunWriter(tmp_path).close()
    with pytest.raises(UsageError, match="holds a run already"):
        RunWriter.begin(tmp_path, front(), "s")


def test_who_holds_a_run_is_named(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        with pytest.raises(UsageError, match=rf"another process writes to the run in .*: process {os.getpid()} \("):
            RunWriter.begin(tmp_path, front(), "s")
        assert not (tmp_path / "run.json").exists() and not (tmp_path / "secret").exists()
    RunWriter.begin(tmp_path, front(), "s").close()


def test_of_many_who_begin_one_run_at_once_one_does(tmp_path: Path) -> None:
    start = threading.Barrier(8)

    def begin(number: int) -> str:
        start.wait()
        try:
            RunWriter.begin(tmp_path, front(name=f"run {number}"), f"secret {number}").close()
        except UsageError as error:
            return str(error)
        return "begun"

    with ThreadPoolExecutor(8) as threads:
        said = list(threads.map(begin, range(8)))
    winner = said.index("begun")
    assert said.count("begun") == 1
    assert all("another process writes" in text or "holds a run already" in text for text in said if text != "begun")
    assert read_run(tmp_path).record.name == f"run {winner}" and stored_secret(tmp_path) == f"secret {winner}"


def test_a_run_that_cannot_be_opened_is_not_kept_locked(tmp_path: Path) -> None:
    RunWriter.begin(tmp_path, front(), "s").close()
    episodes = tmp_path / "episodes.jsonl"
    episodes.write_text('{"strange": 1}\n')
    with pytest.raises(ContentError, match=r"episodes\.jsonl, line 1"):
        RunWriter(tmp_path)
    episodes.write_text("")
    RunWriter(tmp_path).close()


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no run: there is no run\.json"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(ContentError, match=r"run\.json"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text(to_json(front()).replace('"schema_version": 1', '"schema_version": 99'))
    with pytest.raises(UsageError, match=r"schema 99.*update ptxgym"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text(to_json(front()).replace('"device": "emulator", ', ""))
    with pytest.raises(ContentError, match="device: Field required"):
        read_run(tmp_path)
    assert stored_secret(tmp_path) is None
