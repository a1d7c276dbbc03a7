from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest

from ptxgym.cluster import EvaluationService, Fleet
from ptxgym.serve.server import Ending, Place, serve
from tests.cluster.stations import MAKER

TOKEN = "correct-horse"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where scripted workers write what they do; the client's token is the right one."""
    folder = tmp_path / "log"
    folder.mkdir()
    monkeypatch.setenv("PTXGYM_TEST_LOG", str(folder))
    monkeypatch.setenv("PTXGYM_TOKEN", TOKEN)
    return folder


@pytest.fixture
def start(log: Path, tmp_path: Path) -> Iterator[Callable[..., tuple[str, Ending, EvaluationService]]]:
    """Starts servers of scripted workers on threads of this process, and ends them; `start.end()` the last at once."""
    ends: list[Callable[[], None]] = []

    def start(  # type: ignore[no-untyped-def]
        *,
        body_bytes: int | None = None,
        requests: int | None = None,
        place: Place = Place(port=0, grace_s=0),
        journal: str = "accepted",
        **settings: object,
    ):
        settings = {"fleet": Fleet(cpu=1), "results": tmp_path / "results", "maker": MAKER} | settings
        service = EvaluationService(**settings)  # type: ignore[arg-type]
        told: Queue[tuple[str, Ending]] = Queue()
        thread = threading.Thread(
            target=serve,
            args=(service, tmp_path / journal, TOKEN, place),
            kwargs={"told": lambda *both: told.put(both), "body_bytes": body_bytes, "requests": requests},
        )
        thread.start()
        address, ending = told.get(timeout=30)

        def end() -> None:
            if thread.is_alive():
                ending.ask()
                thread.join(30)
            service.close()

        ends.append(end)
        return address, ending, service

    start.end = lambda: ends[-1]()  # type: ignore[attr-defined]
    yield start
    for end in ends:
        end()


class Killable:
    """A server in a process of its own."""

    def __init__(self, folder: Path, workers: int = 2, capacity: int = 512, maker: str = MAKER) -> None:
        self.folder, self._workers, self._capacity, self._maker = folder, workers, capacity, maker
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Start it, on the same port as before, and return its address."""
        (self.folder / "address").unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.serve.served", str(self.folder)]
        command += [str(self.port), str(self._workers), str(self._capacity), self._maker]
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(command, cwd=root, env=os.environ.copy())
        until = time.monotonic() + 60
        while not (self.folder / "address").exists():
            assert self.process.poll() is None and time.monotonic() < until, "the server did not come up"
            time.sleep(0.02)
        address = (self.folder / "address").read_text()
        self.port = int(address.rpartition(":")[2])
        return address

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def killable(log: Path, tmp_path: Path) -> Iterator[Killable]:
    server = Killable(tmp_path)
    yield server
    server.kill()
