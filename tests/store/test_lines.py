"""Lines that survive kills: torn ends, full disks, strange texts."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.errors import ContentError, InfrastructureError
from ptxgym.store.lines import LineWriter, read_lines, to_json, write_whole
from ptxgym.store.records import Message
from ptxgym.verdict import OutputError
from tests.conftest import CHECKOUT

FIRST, SECOND = Message(role="user", content="one"), Message(role="assistant", content="two\nlines")


def read(path: Path) -> list[Message]:
    return list(read_lines(path, Message))


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    with LineWriter(path) as writer:
        writer.append(FIRST)
        writer.append(SECOND)
    return path


def test_every_torn_end_is_dropped_by_readers_and_writers_and_nothing_else(whole: Path) -> None:
    data = whole.read_bytes()
    first = data.index(b"\n") + 1
    for kept in range(len(data) + 1):
        whole.write_bytes(data[:kept])
        expected = [FIRST, SECOND][: (kept >= first) + (kept == len(data))]
        assert read(whole) == expected
        with LineWriter(whole) as writer:
            writer.append(FIRST)
        assert read(whole) == [*expected, FIRST]


@pytest.mark.parametrize("rest", [b"\0" * 64, b"\0" * 64 + b"\n", b'{"role": "user", "con\n'])
def test_what_a_power_cut_leaves_is_dropped_too(whole: Path, rest: bytes) -> None:
    whole.write_bytes(whole.read_bytes() + rest)
    assert read(whole) == [FIRST, SECOND]
    LineWriter(whole).close()
    assert not whole.read_bytes().endswith(rest)


def test_a_bad_line_in_the_middle_is_an_error_that_names_it(whole: Path) -> None:
    good = whole.read_bytes()
    whole.write_bytes(b"{}\n" + good)
    with pytest.raises(ContentError, match=r"lines\.jsonl, line 1: role: .*another version"):
        read(whole)
    whole.write_bytes(b"{\n" + good)
    with pytest.raises(ContentError, match=r"line 1: .*changed after it was written"):
        read(whole)
    assert read(whole.with_name("absent.jsonl")) == []


@given(st.text(st.characters(codec=None)))  # lone surrogates, separators and controls included
def test_any_text_comes_back_from_one_line(text: str) -> None:
    message = Message(role="user", content=text)
    line = to_json(message)
    assert line.isascii() and len(line.splitlines()) == 1
    assert Message.model_validate(json.loads(line)) == message


def test_numbers_that_json_lacks_are_strings() -> None:
    output = OutputError(
        name="C", ok=False, relative_error=float("inf"), relative_budget=1.0, worst_tile_error=float("nan"),
        tile_budget=-float("inf"),
    )  # fmt: skip
    line = to_json(output)
    assert '"Infinity"' in line and '"NaN"' in line and '"-Infinity"' in line
    again = OutputError.model_validate(json.loads(line))
    assert (again.relative_error, again.tile_budget) == (float("inf"), -float("inf"))
    assert again.worst_tile_error != again.worst_tile_error


def test_a_full_disk_leaves_the_file_as_it_was(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = whole.read_bytes()
    real = os.write
    with LineWriter(whole) as writer:
        monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:5]))
        with pytest.raises(InfrastructureError, match="the disk is full"):
            writer.append(FIRST)
        assert whole.read_bytes() == before
        monkeypatch.undo()
        writer.append(FIRST)
    assert read(whole) == [FIRST, SECOND, FIRST]


def test_a_line_that_may_not_be_on_the_disk_is_taken_back_and_comes_once(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = whole.read_bytes(), os.fsync
    failing = [True]

    def fsync(file: int) -> None:
        if failing.pop():
            failing.append(False)
            raise OSError(errno.EIO, "Input/output error")
        failing.append(False)
        real(file)

    with LineWriter(whole) as writer:
        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(InfrastructureError, match="Input/output error"):
            writer.append(FIRST)
        assert whole.read_bytes() == before, "it was written, but not vouched for"
        writer.append(FIRST)
        writer.append(SECOND)
    assert read(whole) == [FIRST, SECOND, FIRST, SECOND]


def test_nothing_is_written_behind_half_a_line(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, sound = os.write, read(whole)

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with LineWriter(whole) as writer:
        monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:5]))
        monkeypatch.setattr(os, "ftruncate", refuse)
        with pytest.raises(InfrastructureError, match="the disk is full"):
            writer.append(FIRST)
        monkeypatch.undo()
        with pytest.raises(InfrastructureError, match="open it anew"):
            writer.append(FIRST)
    assert read(whole) == sound
    with LineWriter(whole) as writer:
        writer.append(FIRST)
    assert read(whole) == [*sound, FIRST]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="absent"):
        LineWriter(tmp_path / "absent" / "lines.jsonl")
    with pytest.raises(InfrastructureError, match="absent"):
        write_whole(tmp_path / "absent" / "run.json", "{}")


WRITES = """
import sys
from pathlib import Path
from ptxgym.store.lines import LineWriter
from ptxgym.store.records import Message
with LineWriter(Path(sys.argv[1])) as writer:
    print("go", flush=True)
    for number in range(10**9):
        writer.append(Message(role="user", content=f"{number} " + "x" * 20000))
"""


def test_kill_9_while_lines_are_written_loses_none_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    for _ in range(3):
        before = len(read(path))
        writing = subprocess.Popen(
            [sys.executable, "-c", WRITES, str(path)], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT
        )
        assert writing.stdout is not None and writing.stdout.readline() == "go\n"
        while path.stat().st_size < (before + 5) * 20_000:
            time.sleep(0.001)
        writing.send_signal(signal.SIGKILL)
        writing.wait()
        writing.stdout.close()
        found = [int(message.content.partition(" ")[0]) for message in read(path)[before:]]
        assert found == list(range(len(found))) and len(found) >= 4
