"""A server in a process of its own, that can be killed.

    python -m tests.serve.served FOLDER PORT WORKERS CAPACITY MAKER

Its workers are scripted (`tests.cluster.stations`), or real ones that log as those do (`LOGGED`). Writes its address to
FOLDER/address once it listens. The token is in PTXGYM_TOKEN, the workers' log in PTXGYM_TEST_LOG.
"""  # fmt: skip

from __future__ import annotations

import os
import sys
from pathlib import Path

from ptxgym.cluster import EvaluationService, Fleet
from ptxgym.cluster.station import Station
from ptxgym.cluster.work import Outcome, Step
from ptxgym.serve.server import Place, serve

LOGGED = "tests.serve.served:Logged"


class Logged(Station):
    """Builds and emulates, and says so: kind, process and last line of the text."""

    def step(self, step: Step) -> Outcome:
        with (Path(os.environ["PTXGYM_TEST_LOG"]) / "steps").open("a", encoding="utf-8") as log:
            log.write(f"{step.kind} {os.getpid()} {step.request.text.splitlines()[-1]}\n")
        return super().step(step)


def main() -> None:
    """Serve until a signal."""
    folder, port, workers, capacity = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    settings = {"capacity": capacity, "maker": sys.argv[5]}

    def told(address: str, ending: object) -> None:
        (folder / "address.new").write_text(address)
        (folder / "address.new").rename(folder / "address")

    with EvaluationService(fleet=Fleet(cpu=workers), results=folder / "results", **settings) as it:  # type: ignore
        serve(it, folder / "accepted", os.environ["PTXGYM_TOKEN"], Place(port=port, grace_s=5), told=told)


if __name__ == "__main__":
    main()
