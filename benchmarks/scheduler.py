"""How many evaluations a second can one scheduler hand out?

    python benchmarks/scheduler.py [--gpus 1 8 64 1000] [--rounds 40]

Needs nothing but Python. Workers that answer at once, all together, as on a cluster where the scheduler is what
everybody waits for: eight evaluations in work per GPU, and a builder for each. The rate is what one thread of Python
decides; Ray's own cost of a call comes on top.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import Future
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ptxgym.cluster.jobs import Asker, Work
from ptxgym.cluster.protocol import Kind, Request, Ticket
from ptxgym.cluster.work import Built
from tests.cluster.fakes import Bench, Role, verdict

SLOTS = 8
VERDICT = verdict("any")


def rate(gpus: int, rounds: int) -> float:
    """Return evaluations per second with so many GPUs."""
    roles = [Role(f"build {n}", frozenset({Kind.BUILD})) for n in range(gpus * SLOTS)]
    roles += [Role(f"gpu {n}", frozenset({Kind.MEASURE}), SLOTS, "h100", "H200") for n in range(gpus)]
    bench = Bench(roles, capacity=4 * gpus * SLOTS)
    for worker in bench.staff():
        for probe in worker.probes:
            probe.set_result(None)
    handle(bench)
    asked = evaluated = 0
    began = time.perf_counter()
    for _ in range(rounds):
        while len(bench.scheduler._jobs) < 3 * gpus * SLOTS:
            asked += 1
            ask(bench, asked)
        handle(bench)
        for worker in bench.workers:
            for step, future in worker.steps:
                end(future, step.kind is Kind.MEASURE, step.request.text)
                evaluated += step.kind is Kind.MEASURE
            worker.steps.clear()
        handle(bench)
    return evaluated / (time.perf_counter() - began)


def handle(bench: Bench) -> None:
    """Handle all events, then decide once, as the engine does."""
    while bench.inbox:
        bench.inbox.popleft()()
    bench.scheduler.advance()
    bench.scheduler.wake_at()


def ask(bench: Bench, number: int) -> None:
    """Ask for a text that nobody has asked for."""
    request = Request(text=f"t{number}", task="gemm", workload="hardware")
    ticket = Ticket(request, f"t{number}", bench.scheduler.withdraw)
    work = Work(f"t{number}", f"t{number}", "h100", Kind.MEASURE, "sha")
    bench.scheduler.ask(Asker(ticket, work, bench.now + 1e9, bench.now + 1e9))


def end(future: Future, measured: bool, text: str) -> None:  # type: ignore[type-arg]
    """End a step with the shortest answer there is."""
    future.set_result(VERDICT if measured else Built(text))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64, 1000])
    parser.add_argument("--rounds", type=int, default=40)
    chosen = parser.parse_args()
    for gpus in chosen.gpus:
        print(f"{gpus:5} GPUs: {rate(gpus, chosen.rounds):8.0f} evaluations/s")


if __name__ == "__main__":
    main()
