from __future__ import annotations

from pathlib import Path

import pytest

from tests.device.emulator.hazards.harness import Kernels, compile_ptx


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return compile_ptx(Path(__file__).parent / "kernels.cu", tmp_path_factory.mktemp("order"))


@pytest.fixture(scope="session")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return compile_ptx(Path(__file__).parent / "pieces.cu", tmp_path_factory.mktemp("pieces"))
