"""What all tests share: one cache that outlives a run, one secret, one evaluator."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ptxgym.evaluator import Evaluator
    from ptxgym.task import Solution, Task

CHECKOUT = Path(__file__).parents[1]

# Before ptxgym is imported: builds are kept from run to run, apart from the user's own; and draws never change.
os.environ.setdefault("PTXGYM_CACHE", str(CHECKOUT / ".cache" / "tests"))
os.environ["PTXGYM_SECRET"] = "the tests' own secret"
os.environ.pop("PTXGYM_CONTENT", None)
# Who starts the tests in the background may have Ctrl-C ignored by them, and by all that they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Say which Gymnasium is tested."""
    import gymnasium

    return f"gymnasium {gymnasium.__version__}, cache {os.environ['PTXGYM_CACHE']}"


@pytest.fixture(scope="session")
def evaluator() -> Iterator[Evaluator]:
    """The real pipeline, shared by the whole session; on the emulator, whatever the machine has."""
    from ptxgym.evaluator import Evaluator

    with Evaluator("emulator") as shared:
        yield shared


@pytest.fixture(scope="session")
def gemm() -> Task:
    """The GEMM task."""
    from ptxgym.task import load_task

    return load_task("gemm")


@pytest.fixture(scope="session")
def kernels(gemm: Task) -> dict[str, tuple[Solution, str]]:
    """Proven and teaching kernels of GEMM on H100 by file stem, with what they must get and their texts."""
    known = (*gemm.solutions["h100"], *gemm.examples["h100"])
    return {Path(kernel.file).stem: (kernel, gemm.source(kernel)) for kernel in known}
