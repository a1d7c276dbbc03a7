from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ptxgym.device.cuda import ncu
from ptxgym.device.cuda.listing import Listing, Place
from ptxgym.device.cuda.report import Launch

from ..executor.conftest import fake, fake_driver  # noqa: F401
from ..executor.harness import Fake
from .support import Installed, launch_of

GOLDEN = Path(__file__).parents[3] / "golden" / "ncu"


@pytest.fixture(scope="session")
def golden_oracle() -> dict[str, Any]:
    """GEMM's oracle at 8192×7168×5120, as profiled on an H200 by Nsight Compute 2025.3.1."""
    return dict(json.loads(gzip.decompress((GOLDEN / "gemm_oracle_h200.json.gz").read_bytes())))


@pytest.fixture(scope="session")
def oracle(golden_oracle: dict[str, Any]) -> Launch:
    """The launch."""
    return launch_of(golden_oracle)


@pytest.fixture(scope="session")
def oracle_sass() -> str:
    """The same build as nvdisasm 13.0 lists it."""
    return gzip.decompress((GOLDEN / "gemm_oracle_h200.sass.gz").read_bytes()).decode()


@pytest.fixture(scope="session")
def oracle_places(golden_oracle: dict[str, Any]) -> Listing:
    """Where the instructions of that build stand in its text."""
    return {golden_oracle["kernel"]: {int(at): Place(*found) for at, found in golden_oracle["places"].items()}}


@pytest.fixture
def installed(fake_driver: Path, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:  # noqa: F811
    """A Nsight Compute that is none, on PATH."""
    made = Installed(fake_driver, fake.folder, tmp_path / "nsight")
    monkeypatch.setenv("PATH", f"{made.folder}:/usr/bin:/bin")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ncu.find_ncu.cache_clear()
    yield made
    ncu.find_ncu.cache_clear()
    ncu.ncu_permission.cache_clear()
