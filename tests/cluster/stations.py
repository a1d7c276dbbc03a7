"""Stations for worker processes in tests: the text of a submission says what becomes of it."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from ptxgym.cluster.protocol import Kind
from ptxgym.cluster.station import Description, StationConfig, package_versions
from ptxgym.cluster.work import Built, Outcome, Step
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.verdict import Provenance, Stage, Status, Verdict

MAKER = "tests.cluster.stations:Scripted"


class Odd(Exception):
    """Whose pickle cannot be read: it is made of its message alone."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)


@dataclass
class Foreign:
    """Whose pickle can be read in the process alone that made it."""

    pid: int

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return _foreign, (self.pid,)


def _foreign(pid: int) -> Foreign:
    if pid != os.getpid():
        raise ZeroDivisionError("made elsewhere")
    return Foreign(pid)


class Scripted:
    """Obeys the first line of a text after `// `, such as `die once NAME`; anything else is judged `ok` at once.

    Files in the folder that `PTXGYM_TEST_LOG` names tell what was done: one line per step in `steps`.
    """

    def __init__(self, config: StationConfig) -> None:
        self._config = config
        self._folder = Path(os.environ["PTXGYM_TEST_LOG"])

    def describe(self) -> Description:
        node = os.environ.get("RAY_NODE_ID", "here")
        gpu = None
        if self._config.arch is not None:
            gpu = Gpu(f"GPU-{os.getpid()}", 0, "NVIDIA H200", (9, 0), 1 << 37, "580")
        versions = package_versions()
        return Description(node, {**versions, "ptxgym": os.environ.get("PTXGYM_TEST_VERSION", versions["ptxgym"])}, gpu)

    def step(self, step: Step) -> Outcome:
        text = step.request.text
        with (self._folder / "steps").open("a", encoding="utf-8") as log:
            log.write(f"{step.kind} {os.getpid()} {text.splitlines()[0] if text else ''}\n")
        if step.kind is Kind.BUILD:
            return Built(f"built from {text}")
        assert step.handover == f"built from {text}"
        what, *arguments = text.splitlines()[0].removeprefix("// ").split() if text else ["ok"]
        if what == "sleep":
            time.sleep(float(arguments[0]))
        elif what == "die" and self._first(arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "infra" and self._first(arguments):
            raise InfrastructureError("the disk is full")
        elif what == "usage":
            raise UsageError("other content")
        elif what == "bug":
            raise ZeroDivisionError("division by zero")
        elif what == "odd":
            raise Odd("plan.invalid", "an operation of none")
        elif what == "foreign":
            return Built(Foreign(os.getpid()))
        elif what == "local":
            return Built(lambda: None)
        return Verdict(
            stage=Stage.JUDGE,
            status=Status.OK,
            code="judge.ok",
            message=text,
            score=0.5,
            provenance=Provenance(
                ptxgym="1",
                task=step.request.task,
                task_revision=1,
                arch=step.request.arch,
                source_sha256=hashlib.sha256(text.encode()).hexdigest(),
                conditions=f"epoch {self._config.epoch}",
            ),
        )

    def probe(self) -> None:
        if (self._folder / "unwell").exists():
            raise InfrastructureError("Xid 79")

    def _first(self, arguments: list[str]) -> bool:
        """Whether this is to happen: always, or only the first time under a name."""
        if not arguments or arguments[0] != "once":
            return True
        try:
            (self._folder / arguments[1]).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
