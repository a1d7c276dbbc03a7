"""A server over scripted workers (`tests.cluster.stations`) in a process of its own, that can be killed.

    python -m tests.serve.served FOLDER PORT WORKERS CAPACITY

Writes its address to FOLDER/address once it listens. The token is in PTXGYM_TOKEN, the workers' log in PTXGYM_TEST_LOG.
"""  # fmt: skip

from __future__ import annotations

import os
import sys
from pathlib import Path

from ptxgym.cluster import EvaluationService, Fleet
from ptxgym.serve.server import Place, serve
from tests.cluster.stations import MAKER


def main() -> None:
    """Serve until a signal."""
    folder, port, workers, capacity = Path(sys.argv[1]), *map(int, sys.argv[2:5])

    def told(address: str, ending: object) -> None:
        (folder / "address.new").write_text(address)
        (folder / "address.new").rename(folder / "address")

    with EvaluationService(fleet=Fleet(cpu=workers), results=folder / "results", capacity=capacity, maker=MAKER) as it:
        serve(it, folder / "accepted", os.environ["PTXGYM_TOKEN"], Place(port=port, grace_s=5), told=told)


if __name__ == "__main__":
    main()
