"""What differs in pytest while native code is built with sanitizers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ptxgym import sandbox
from ptxgym.device.cuda import executor_process
from ptxgym.device.emulator import pool
from ptxgym.plan import host
from ptxgym.sandbox.process import SCRUBBED_ENVIRONMENT
from tests.sanitize import builds

OPTIONS = ("ASAN_OPTIONS", "UBSAN_OPTIONS")
RUNTIME = ("LD_PRELOAD", *OPTIONS)
TOOLS = frozenset({"g++", "nvcc", "ptxas", "nvdisasm", "cuobjdump", "ldd", "pgrep"})
"""With a sanitizer's runtime in front of their own allocator they fail, hang or are slow; `ldd` names it, too."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `python -m tests.sanitize` gives."""
    parser.addoption("--unconfined", action="store_true", help="the recorder with AddressSanitizer, without its cage")


def pytest_configure(config: pytest.Config) -> None:
    """Build with sanitizers; let processes load the runtime, and give them the memory and the time that it takes."""
    patch = pytest.MonkeyPatch()
    patch.setattr(pool, "INHERITED", (*pool.INHERITED, *RUNTIME))
    patch.setattr(pool, "MAX_RSS_BYTES", 1 << 40)
    patch.setattr(pool, "START_LIMIT_S", 600.0)
    patch.setattr(executor_process, "INHERITED", (*executor_process.INHERITED, *OPTIONS))
    start = subprocess.Popen.__init__

    def started(process: Any, command: Any, *rest: Any, **keywords: Any) -> None:
        first = command if isinstance(command, str | os.PathLike) else command[0]
        if Path(first).name in TOOLS:
            given = keywords.get("env") or os.environ
            keywords["env"] = {name: value for name, value in given.items() if name not in RUNTIME}
        start(process, command, *rest, **keywords)

    patch.setattr(subprocess.Popen, "__init__", started)
    unconfined = config.getoption("--unconfined")
    builds.use(patch, unconfined)
    if unconfined:
        _free_the_recorder(patch)
    config.add_cleanup(patch.undo)


def _free_the_recorder(patch: pytest.MonkeyPatch) -> None:
    """Run it without system-call filter, file view and limit of memory, and off the addresses of shadow memory."""
    run = sandbox.run

    def run_freely(argv: Sequence[str | Path], **keywords: Any) -> sandbox.Completed:
        if Path(argv[0]).name == "recorder":
            argv = [argv[0], "--unconfined"]
            limits = replace(keywords["limits"], data_bytes=None, file_size_bytes=None)
            options = {name: os.environ[name] for name in OPTIONS}
            keywords |= {"limits": limits, "filesystem": "none", "env": {**SCRUBBED_ENVIRONMENT, **options}}
        return run(argv, **keywords)

    patch.setattr(sandbox, "run", run_freely)
    first, second = host._LAYOUTS
    patch.setattr(host, "_LAYOUTS", (replace(first, base=0x2000_0020_0000), second))
