"""Measuring conformance cases, with a script in the place of the GPU's program."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.gpu import run_conformance
from tests.gpu.cases import Case
from tests.gpu.cases.model import KEEP_BYTES

FAKE = """#!{python}
import struct, sys, time
jobs, results = open(sys.argv[1], "rb"), open(sys.argv[2], "wb")
while head := jobs.read({head}):
    name = head[:48].rstrip(b"\\0").decode()
    threads, smem, in_bytes, out_bytes = struct.unpack_from("<IIII", head, 48)
    data = jobs.read(in_bytes)
    if name == "hang":
        results.flush()
        time.sleep(60)
    status = {{"fault": 700, "unknown": -1}}.get(name, 0)
    results.write(struct.pack("<i", status) + (data[:1] * out_bytes if status == 0 else b""))
    if status > 0:
        break
"""


def case(name: str, kernel: str = "good", out_bytes: int = 8) -> Case:
    return Case(name, kernel, 32, name[-1:].encode(), out_bytes)


@pytest.fixture
def program(tmp_path: Path) -> list[Path]:
    runner = tmp_path / "runner"
    runner.write_text(FAKE.format(python=sys.executable, head=len(case("a").job()) - 1))
    runner.chmod(0o755)
    return [runner]


def test_a_fault_or_a_hang_costs_its_case_alone(
    program: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_conformance, "JOBS_TIMEOUT_S", 2)
    cases = [case("a"), case("b", "fault"), case("c"), case("d", "hang"), case("e"), case("f", "unknown"), case("g")]
    found = run_conformance.run(program, cases, tmp_path)
    assert [found[c.name][0] for c in cases] == [0, 700, 0, run_conformance.HANG, 0, -1, 0]
    assert found["a"][1] == b"a" * 8 and found["g"][1] == b"g" * 8 and found["b"][1] == b""


def test_only_what_is_new_or_changed_is_measured_again(tmp_path: Path) -> None:
    file, kept, changed = tmp_path / "golden.npz", case("load/kept"), case("load/changed")
    about = {
        "device": "NVIDIA H200, 580.1",
        "status": {"load/kept": 0, "load/changed": 0, "load/gone": 0},
        "inputs": {"load/kept": kept.digest, "load/changed": "another", "load/gone": "gone"},
        "digests": {},
    }
    arrays = {name: np.full(8, 7, np.uint8) for name in about["status"]}
    np.savez(file, about=np.array(json.dumps(about)), **arrays)
    statuses, outputs = run_conformance.known(file, [kept, changed], "NVIDIA H200, 590.2")
    assert statuses == {"load/kept": 0} and list(outputs) == ["load/kept"]
    with pytest.raises(SystemExit, match="pass --all"):
        run_conformance.known(file, [kept], "NVIDIA H100 80GB HBM3, 590.2")


def test_the_file_gives_back_outputs_and_digests(tmp_path: Path) -> None:
    file, cases = tmp_path / "new" / "golden.npz", [case("load/a"), case("load/b", out_bytes=KEEP_BYTES + 1)]
    outputs = {c.name: c.condensed(np.full(c.out_bytes, 7, np.uint8)) for c in cases}
    run_conformance.keep(file, "NVIDIA H200, 580.1", cases, {c.name: 0 for c in cases}, outputs)
    assert np.load(file).files == ["about", "load/a"]
    statuses, found = run_conformance.known(file, cases, "NVIDIA H200, 580.1")
    assert statuses == {"load/a": 0, "load/b": 0}
    np.testing.assert_array_equal(found["load/a"], np.full(8, 7, np.uint8))
    assert found["load/b"] == hashlib.sha256(b"\7" * (KEEP_BYTES + 1)).hexdigest()
    assert list(run_conformance.known(file, cases[1:], "NVIDIA H200, 580.1")[1]) == ["load/b"]


def test_long_outputs_are_kept_as_a_digest_and_nans_are_all_one() -> None:
    assert len(case("load/x").condensed(np.zeros(KEEP_BYTES, np.uint8))) == KEEP_BYTES
    assert isinstance(case("load/x").condensed(np.zeros(KEEP_BYTES + 1, np.uint8)), str)
    floats = Case("lanes/x", "k", 32, b"", 8, nan_type="f32")
    quiet, other = (np.array([1.0, nan], np.float32) for nan in (np.nan, -np.nan))
    other.view(np.uint32)[1] |= 0x1234
    assert quiet.tobytes() != other.tobytes()
    assert floats.condensed(quiet.view(np.uint8)) == floats.condensed(other.view(np.uint8))
    assert floats.condensed(quiet.view(np.uint8)) != floats.condensed(
        np.array([2.0, np.nan], np.float32).view(np.uint8)
    )
