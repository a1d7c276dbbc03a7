"""What differs in pytest while the core is built with sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ptxgym.device.emulator import pool

RUNTIME = ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS")
TOOLS = frozenset({"nvcc", "ptxas", "nvdisasm", "cuobjdump"})
"""They do not run with a sanitizer's runtime in front of their own memory allocator."""


def pytest_configure(config: pytest.Config) -> None:
    """Let workers load the sanitizers' runtime, and give them the memory and the time that it takes."""
    patch = pytest.MonkeyPatch()
    patch.setattr(pool, "INHERITED", (*pool.INHERITED, *RUNTIME, "CXX"))
    patch.setattr(pool, "MAX_RSS_BYTES", 1 << 40)
    patch.setattr(pool, "START_LIMIT_S", 600.0)
    start = subprocess.Popen.__init__

    def started(process: Any, command: Any, *rest: Any, **keywords: Any) -> None:
        first = command if isinstance(command, str | os.PathLike) else command[0]
        if Path(first).name in TOOLS:
            given = keywords.get("env") or os.environ
            keywords["env"] = {name: value for name, value in given.items() if name not in RUNTIME}
        start(process, command, *rest, **keywords)

    patch.setattr(subprocess.Popen, "__init__", started)
    config.add_cleanup(patch.undo)
