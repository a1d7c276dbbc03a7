"""How many evaluations a second can one driver hand out?

    python benchmarks/scheduler.py [--gpus 1 8 64 1000] [--rounds 40]
    python benchmarks/scheduler.py --lobby 4488
    python benchmarks/scheduler.py --service local ray [--workers 2] [--evaluations 1000]

Without options the scheduler alone: workers that answer at once, all together, as on a cluster where the scheduler
is what everybody waits for: eight evaluations in work per GPU, and a builder for each. The rate is what one thread of
Python decides.

With `--lobby`, what each event costs while so many askers wait for room, results being kept in memory or in a folder.

With `--service` the whole service, `ray` needs Ray: worker processes, or actors that hold one each, whose steps do
nothing, and whose builds have the size of a real one. What counts is the driver's own CPU time per evaluation, two
steps each: it says how many evaluations a second one driver can hand out, however many machines do them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Literal, cast

sys.path.insert(0, str(Path(__file__).parents[1]))

from ptxgym.cluster import EvaluationService, Fleet
from ptxgym.cluster.jobs import Asker, Work
from ptxgym.cluster.protocol import Kind, Request, Ticket
from ptxgym.cluster.results import Results
from ptxgym.cluster.service import CAPACITY
from ptxgym.cluster.station import Description, Handover, StationConfig, package_versions
from ptxgym.cluster.work import Built, Outcome, Role, Step
from ptxgym.content import find
from tests.cluster.fakes import Bench, verdict

SLOTS = 8
VERDICT = verdict("any")
BUILD_BYTES = 320 << 10
"""The median of builds on disk."""


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


def event_s(waiting: int, results: Results, events: int = 50) -> float:
    """Return the CPU seconds that one event takes where the queue is full and so many askers wait for room."""
    roles = [Role("build 0", frozenset({Kind.BUILD})), Role("gpu 0", frozenset({Kind.MEASURE}), SLOTS, "h100", "H200")]
    bench = Bench(roles, capacity=CAPACITY, remembered=results.get)
    bench.staff()
    for number in range(CAPACITY + waiting):
        ask(bench, number)
    spent = time.process_time()
    for _ in range(events):
        handle(bench)
    return (time.process_time() - spent) / events


def handle(bench: Bench) -> None:
    """Handle all events, then decide once, as the engine does."""
    while bench.inbox:
        bench.inbox.popleft()()
    bench.scheduler.advance()
    bench.scheduler.wake_at()


def ask(bench: Bench, number: int) -> None:
    """Ask for a text that nobody has asked for."""
    request = Request(text=f"t{number}", task="gemm", workload="hardware")
    key = f"{number:064x}"
    ticket = Ticket(request, key, bench.scheduler.withdraw)
    work = Work(key, key, "h100", Kind.MEASURE, "sha")
    bench.scheduler.ask(Asker(ticket, work, bench.now + 1e9, bench.now + 1e9))


def end(future: Future, measured: bool, text: str) -> None:  # type: ignore[type-arg]
    """End a step with the shortest answer there is."""
    future.set_result(VERDICT if measured else Built(text))


class Instant:
    """A station whose steps do nothing."""

    def __init__(self, config: StationConfig) -> None:
        self._ship = config.ship

    def describe(self) -> Description:
        """Say where this is."""
        return Description("here", package_versions())

    def step(self, step: Step) -> Outcome:
        """Answer."""
        if step.kind is Kind.BUILD:
            return Built(Handover(str(step.number), 0.0, {"build": bytes(BUILD_BYTES)} if self._ship else None))
        return VERDICT

    def probe(self) -> None:
        """Be well."""


def service_rate(backend: Literal["local", "ray"], workers: int, evaluations: int) -> tuple[float, float]:
    """Return evaluations per second, and the driver's CPU seconds for each."""
    text = (find("tasks")["gemm"].parent / "solutions" / "h100" / "oracle.cu").read_text(encoding="utf-8")
    maker = f"benchmarks.scheduler:{Instant.__name__}"
    with EvaluationService(backend, fleet=Fleet(cpu=workers), secret="s", capacity=64, maker=maker) as service:
        service.evaluate(text, "gemm")
        began, spent = time.perf_counter(), time.process_time()
        tickets = [service.submit(Request(text=f"{text}// {number}", task="gemm")) for number in range(evaluations)]
        for ticket in tickets:
            ticket.result()
        return evaluations / (time.perf_counter() - began), (time.process_time() - spent) / evaluations


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64, 1000])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--lobby", type=int, default=0)
    parser.add_argument("--service", nargs="+", choices=("local", "ray"), default=[])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--evaluations", type=int, default=1000)
    chosen = parser.parse_args()
    for backend in chosen.service:
        if backend == "ray":
            import ray

            ray.init("local", num_cpus=chosen.workers, include_dashboard=False, log_to_driver=False)
        kind = cast('Literal["local", "ray"]', backend)
        a_second, driver_s = service_rate(kind, chosen.workers, chosen.evaluations)
        cost = f"{1000 * driver_s:.2f} ms of the driver each: at most {1 / driver_s:.0f} a second"
        print(f"{backend}, {chosen.workers} workers: {a_second:8.0f} evaluations/s, {cost}")
    if chosen.lobby:
        with tempfile.TemporaryDirectory() as folder:
            for where, results in {"memory": Results(), "a folder": Results(Path(folder))}.items():
                cost = f"{1000 * event_s(chosen.lobby, results):.2f} ms of CPU for each event"
                print(f"{chosen.lobby} in the lobby, results in {where}: {cost}")
    if chosen.service or chosen.lobby:
        return
    for gpus in chosen.gpus:
        print(f"{gpus:5} GPUs: {rate(gpus, chosen.rounds):8.0f} evaluations/s")


if __name__ == "__main__":
    main()
