"""What tests marked `gpu` stand on: where it is missing they are skipped, as their mark says."""

from __future__ import annotations

from typing import Any

import pytest

from ptxgym.device.cuda.gpu import Gpu, gpu_for


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    """A GPU of the generation; these tests ask what it does, and no fake could answer (fakes: tests/device/cuda)."""
    return gpu_for("h100") or pytest.skip("no Hopper GPU")


@pytest.fixture(scope="session")
def cupy() -> Any:
    """cupy with a device: the judge's kernels are compiled and run; with numpy, tests/judge tests the same code."""
    module = pytest.importorskip("cupy")
    return module if module.cuda.is_available() else pytest.skip("no CUDA device")
