"""What differs in pytest while the core is built with sanitizers."""

from __future__ import annotations

import pytest

from ptxgym.device.emulator import pool

PASSED_ON = ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS", "CXX")


def pytest_configure(config: pytest.Config) -> None:
    """Let workers load the sanitizers' runtime, and give them the memory and the time that it takes."""
    patch = pytest.MonkeyPatch()
    patch.setattr(pool, "INHERITED", (*pool.INHERITED, *PASSED_ON))
    patch.setattr(pool, "MAX_RSS_BYTES", 1 << 40)
    patch.setattr(pool, "START_LIMIT_S", 600.0)
    config.add_cleanup(patch.undo)
