from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from ptxgym.device.cuda.listing import Texts
from ptxgym.device.cuda.report import NO_TEXTS, Launch, ReportError, ReportReader, reader_problem

from .support import HERE, made_launch


@pytest.fixture
def reader(tmp_path: Path) -> Path:
    """A folder as `extras/python` of Nsight Compute."""
    folder = tmp_path / "python"
    folder.mkdir()
    shutil.copy(HERE / "fake_ncu_report.py", folder / "ncu_report.py")
    return folder


def read_report(path: Path | None, reader: Path, left_out: str = "", texts: Texts = NO_TEXTS) -> tuple[Launch, ...]:
    return ReportReader(reader).read(path, left_out, texts)


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


def test_texts_that_are_known_are_not_read(reader: Path, tmp_path: Path) -> None:
    slow = (
        (HERE / "fake_ncu_report.py").read_text().replace("def sass_by_pc(self, address):", "def sass_by_pc(self, no):")
    )
    (reader / "ncu_report.py").write_text(slow.replace('return "      " + ', "raise ValueError(no) or "))
    path = written(tmp_path / "r", made_launch())
    (launch,) = read_report(path, reader, texts={"k": {0: "@P0 FMUL R1, R2, R3", 16: "EXIT", 32: "NOP"}})
    assert launch.sass == ("@P0 FMUL R1, R2, R3", "EXIT")
    with pytest.raises(ReportError, match="ValueError: 4112"):
        read_report(path, reader, texts={"k": {0: "FMUL R1, R2, R3"}, "j": {16: "EXIT"}})


@pytest.mark.parametrize(
    ("entries", "offsets", "sass"),
    [([4112], (-16, 0), ("FFMA R0, R1, R2, R3", "NOP")), ([4112, 4096], (0, 16), ("NOP", "EXIT"))],
)
def test_offsets_count_from_the_kernels_entry(
    reader: Path, tmp_path: Path, entries: list[int], offsets: tuple[int, ...], sass: tuple[str, ...]
) -> None:
    (tmp_path / "r").write_text(json.dumps([{**dataclasses.asdict(made_launch()), "entries": entries}]))
    (launch,) = read_report(tmp_path / "r", reader, texts={"k": {0: "NOP"}})
    assert (launch.offsets, launch.sass) == (offsets, sass)


def test_a_report_without_counts_is_refused(reader: Path, tmp_path: Path) -> None:
    launch = dataclasses.replace(made_launch(), instances={"inst_executed": (4, 4)})
    with pytest.raises(ReportError, match="lacks thread_inst_executed_true"):
        read_report(written(tmp_path / "r", launch), reader)


def test_a_missing_report_and_a_missing_reader_say_so(reader: Path, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"FileNotFoundError: .*none\.ncu-rep does not exist"):
        read_report(tmp_path / "none.ncu-rep", reader)
    with pytest.raises(ReportError, match="No module named 'ncu_report'"):
        read_report(None, tmp_path / "nowhere")


def test_an_unknown_unit_is_refused(reader: Path, tmp_path: Path) -> None:
    (reader / "ncu_report.py").write_text((HERE / "fake_ncu_report.py").read_text().replace('"ns"', '"fortnights"'))
    with pytest.raises(ReportError, match="in 'fortnights', which is no unit"):
        read_report(written(tmp_path / "r", made_launch()), reader)


def test_a_reader_for_another_python_says_so(tmp_path: Path) -> None:
    (tmp_path / "ncu_report.py").write_text("import _ncu_report_of_another_python\n")
    assert "_ncu_report_of_another_python" in (reader_problem(tmp_path) or "")


def test_a_reader_that_crashes_is_no_crash_of_ours(tmp_path: Path) -> None:
    (tmp_path / "ncu_report.py").write_text("import ctypes\ndef load_report(path):\n    ctypes.string_at(0)\n")
    assert reader_problem(tmp_path) is None
    with pytest.raises(ReportError, match="died of SIGSEGV: Fatal Python error: Segmentation fault"):
        read_report(tmp_path / "r", tmp_path)


def test_the_reader_has_imported_nothing_that_is_installed(tmp_path: Path) -> None:
    (tmp_path / "ncu_report.py").write_text(
        "import sys\n"
        "found = {name.partition('.')[0] for name in sys.modules}\n"
        "foreign = found - set(sys.stdlib_module_names) - {'__main__', 'ncu_report'}\n"
        "if foreign:\n    raise ImportError(str(foreign))\n"
    )
    assert reader_problem(tmp_path) is None
