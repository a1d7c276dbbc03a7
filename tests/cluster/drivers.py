"""Drivers of a service on Ray in processes of their own: `python -m tests.cluster.drivers NAME`.

`RAY_ADDRESS` says on which cluster. Each prints one JSON line per thing that a test waits for.
"""

from __future__ import annotations

import json
import sys
import time

from ptxgym.cluster import EvaluationService, Fleet, Request
from ptxgym.errors import InfrastructureError, ResourcesMissing
from tests.cluster.stations import MAKER


def say(**what: object) -> None:
    """Print a line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def asks_for_a_b200() -> None:
    """Ask for what the cluster has not."""
    began = time.monotonic()
    try:
        EvaluationService("ray", fleet=Fleet(cpu=1, gpus={"B200": 1}))
    except ResourcesMissing as error:
        say(seconds=time.monotonic() - began, said=str(error))


def holds() -> None:
    """Evaluate something, and stay."""
    service = EvaluationService("ray", fleet=Fleet(cpu=1), secret="s", maker=MAKER)
    service.evaluate("// ok", "gemm")
    say(pid=service.status().workers[0].pid)
    time.sleep(600)


def loses_its_head() -> None:
    """Wait for a verdict that does not come since the cluster's head is killed."""
    from ptxgym.cluster import ray_backend

    ray_backend.SILENCE_LIMIT_S = 5.0
    service = EvaluationService("ray", fleet=Fleet(cpu=1), secret="s", maker=MAKER)
    service.evaluate("// ok", "gemm")
    ticket = service.submit(Request(text="// sleep 600", task="gemm"))
    say(pid=service.status().workers[0].pid)
    for asked in (ticket.result, lambda: service.evaluate("// ok 2", "gemm")):
        try:
            asked()
        except InfrastructureError as error:
            say(said=str(error))
    service.status()
    service.close()
    import ray

    while ray.is_initialized():  # Ray would end this process a minute after its head
        time.sleep(0.1)
    say(left=True)


if __name__ == "__main__":
    {f.__name__: f for f in (asks_for_a_b200, holds, loses_its_head)}[sys.argv[1]]()
