from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import pytest

from ptxgym.device.cuda.report import Launch, ReportError, read_report

from .support import HERE, made_launch


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No module of an earlier test; a process reads with one."""
    monkeypatch.delitem(sys.modules, "ncu_report", raising=False)


@pytest.fixture
def reader(tmp_path: Path) -> Path:
    """A folder as `extras/python` of Nsight Compute."""
    folder = tmp_path / "python"
    folder.mkdir()
    shutil.copy(HERE / "fake_ncu_report.py", folder / "ncu_report.py")
    return folder


def written(path: Path, *launches: Launch) -> Path:
    path.write_text(json.dumps([dataclasses.asdict(launch) for launch in launches]))
    return path


def test_launches_come_in_order_with_values_and_instructions(reader: Path, tmp_path: Path, oracle: Launch) -> None:
    small = made_launch(values={"gpu__time_duration.sum": 12.5, "not_asked_for": 1.0})
    first, second = read_report(written(tmp_path / "r", small, oracle), reader)
    assert first.kernel == "k" and first.sass == ("FFMA R0, R1, R2, R3", "EXIT") and first.offsets == (0, 16)
    assert first.values == {"gpu__time_duration.sum": 12.5}  # the report says ns
    assert first.instances == {"inst_executed": (4, 4), "thread_inst_executed_true": (128, 128)}
    assert second == oracle


def test_a_first_launch_may_be_left_out(reader: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "r", *(made_launch(name) for name in ("own", "k", "own")))
    assert [launch.kernel for launch in read_report(path, reader, "own")] == ["k", "own"]
    assert [launch.kernel for launch in read_report(path, reader, "k")] == ["own", "k", "own"]


def test_a_report_without_counts_is_refused(reader: Path, tmp_path: Path) -> None:
    launch = dataclasses.replace(made_launch(), instances={"inst_executed": (4, 4)})
    with pytest.raises(ReportError, match="lacks thread_inst_executed_true"):
        read_report(written(tmp_path / "r", launch), reader)


def test_a_missing_report_and_a_missing_reader_say_so(reader: Path, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"none\.ncu-rep cannot be read"):
        read_report(tmp_path / "none.ncu-rep", reader)
    with pytest.raises(ReportError, match="is missing"):
        read_report(tmp_path / "none.ncu-rep", tmp_path / "nowhere")


def test_a_reader_for_another_python_says_so(tmp_path: Path) -> None:
    (tmp_path / "ncu_report.py").write_text("import _ncu_report_of_another_python\n")
    with pytest.raises(ReportError, match="cannot be loaded by this Python"):
        read_report(tmp_path / "r", tmp_path)
