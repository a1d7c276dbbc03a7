"""`ptxgym report`: writes the page, or says in a line why not."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from ptxgym.cli import main


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["ptxgym", "report", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_it_writes_the_page(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "new folder" / "report.html"
    assert call(monkeypatch, run_folder, "--out", page) == 0
    assert f"{page}: " in capsys.readouterr().out
    assert page.read_text().startswith("<!doctype html>")


def test_only_another_page_is_replaced(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turns, kernel = run_folder / "turns.jsonl", tmp_path / "mine.cu"
    kernel.write_text("// my kernel\n")
    for kept in (turns, kernel):
        before = kept.read_bytes()
        assert call(monkeypatch, run_folder, "--out", kept) == 2
        assert "is no HTML page; name another file" in capsys.readouterr().err.replace("\n", " ")
        assert kept.read_bytes() == before
    assert call(monkeypatch, run_folder, "--out", tmp_path) == 2
    page = tmp_path / "report.html"
    page.write_text("<!DOCTYPE html><p>an earlier one")
    assert call(monkeypatch, run_folder, "--out", page) == 0
    assert "an earlier one" not in page.read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_earlier_page_survives_a_full_disk(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    page.write_text("<!doctype html><p>an earlier one")

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("ptxgym.store.lines.os.fsync", full)
    assert call(monkeypatch, run_folder, "--out", page) == 3
    assert f"cannot write {page}: No space left" in capsys.readouterr().err.replace("\n", " ")
    assert page.read_text() == "<!doctype html><p>an earlier one"


def test_a_folder_without_a_run_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, tmp_path, "--out", tmp_path / "page.html") == 2
    said = capsys.readouterr().err
    assert "holds no run" in said and said.count("\n") == 1


def test_a_missing_extra_is_a_usage_error_that_names_it(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert call(monkeypatch, run_folder, "--out", tmp_path / "page.html") == 2
    assert "pip install 'ptxgym[report]'" in capsys.readouterr().err.replace("\n", " ")
