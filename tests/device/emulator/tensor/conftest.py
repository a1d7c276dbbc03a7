from __future__ import annotations

from pathlib import Path

import pytest

from tests.device.emulator.tensor.harness import CONFORMANCE, Kernels


@pytest.fixture(scope="session")
def conformance(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """The kernels that were measured on hardware."""
    return Kernels(CONFORMANCE, tmp_path_factory.mktemp("conformance"))


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """Kernels that break a rule, beside twins that keep it."""
    return Kernels(Path(__file__).with_name("faulty.cu"), tmp_path_factory.mktemp("faulty"))
