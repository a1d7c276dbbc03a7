"""`ptxgym cluster status`: the services of this user on this machine, and those of a Ray cluster."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ptxgym.cli.console import out, plain
from ptxgym.errors import UsageError
from ptxgym.extras import missing

if TYPE_CHECKING:
    from ptxgym.cluster.protocol import ServiceStatus

    _Found = list[tuple[str, float, ServiceStatus | None]]
    """Name of each service, how many seconds old its status is, and the status; None where that cannot be read."""

UNREADABLE = "its status cannot be read: it runs another version of ptxgym"

cluster = typer.Typer(help="Evaluation services: workers, queues, GPUs.", no_args_is_help=True)


@cluster.callback()
def _root() -> None:
    pass


@cluster.command()
def status(
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="ADDRESS", help="Of a Ray cluster, such as auto; else this machine."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", metavar="", help="Print it as JSON.")] = False,
) -> None:
    """Show what evaluation services are doing: queues, workers, GPUs in quarantine, what failed."""
    there, found = _on_this_machine() if address is None else _on_ray(address)
    if json_:
        services = [{"service": name, "age_s": age_s, **_plain(one)} for name, age_s, one in found]
        typer.echo(json.dumps({"there": there, "services": services}, indent=2))
        return
    out.print(plain(there, "bold"))
    for name, age_s, one in found:
        _show(name, age_s, one)
    if not found:
        out.print(plain("no evaluation service is running here"))


def _on_this_machine() -> tuple[str, _Found]:
    from ptxgym.cluster.backend import boards
    from ptxgym.cluster.fleet import cores, local_gpus

    gpus = ", ".join(f"{len(same)} × {name}" for name, same in local_gpus().items()) or "no GPU that measures"
    return f"this machine: {cores()} CPU cores, {gpus}", [
        (f"process {pid}", age_s, one) for pid, age_s, one in boards()
    ]


def _on_ray(address: str) -> tuple[str, _Found]:
    try:
        import ray

        from ptxgym.cluster import ray_metrics, ray_nodes
        from ptxgym.cluster.protocol import ServiceStatus
    except ImportError as error:
        raise missing("ray", "a Ray cluster needs", "cluster") from error
    connected = ray.is_initialized()
    try:
        if not connected:
            if address.rpartition(":")[2].isdigit() and "://" not in address:
                ray_nodes.check_reachable(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        there = ray_nodes.described(ray_nodes.resources(ray_nodes.alive_nodes()))
        try:
            board: Any = ray.get_actor(ray_metrics.BOARD, namespace=ray_metrics.NAMESPACE)
            written: Any = ray.get(board.read.remote(), timeout=ray_nodes.PREFLIGHT_LIMIT_S)
        except ValueError:  # no service has ever put one up
            written = {}
    except ConnectionError as error:
        raise UsageError(f"--address {address}: no Ray cluster answers there: {error}") from error
    finally:
        if not connected:
            ray.shutdown()
    return f"Ray cluster: {there}", [
        (name, age_s, ServiceStatus.read(one)) for name, (age_s, one) in sorted(written.items())
    ]


def _plain(one: ServiceStatus | None) -> dict[str, Any]:
    return {"error": UNREADABLE} if one is None else one.model_dump(mode="json")


def _show(name: str, age_s: float, one: ServiceStatus | None) -> None:
    if one is None:
        out.print()
        out.print(plain(f"service of {name}: {UNREADABLE}", "yellow"))
        return
    waiting = ", ".join(f"{number} {kind}" for kind, number in one.waiting.items() if number) or "nothing"
    out.print()
    out.print(plain(f"service of {name} ({one.backend}), as it was {age_s:.0f} s ago", "bold"))
    out.print(plain(f"waiting: {waiting}; outside: {one.lobby}; room for {one.capacity}"))
    out.print(plain(", ".join(f"{number:g} {name}" for name, number in sorted(one.counters.items())), "dim"))
    table = Table("worker", "where", "pid", "does", "state", "in work", "done", "busy", "trouble", box=None)
    for worker in one.workers:
        share = worker.busy_s / worker.age_s if worker.age_s > 0 else 0.0
        row = (
            worker.name,
            worker.place,
            str(worker.pid),
            " ".join(worker.kinds),
            worker.state,
            f"{worker.running}/{worker.slots}",
            str(worker.done),
            f"{share:.0%}",
            worker.trouble.partition("\n")[0][:60],
        )
        table.add_row(*map(plain, row))
    out.print(table)
    if one.missing:
        out.print(plain(f"missing: {one.missing}", "yellow"))
    for kind, number in one.wanted.items():
        there = sum(kind in worker.kinds for worker in one.workers)
        if starting := one.starting.get(kind, 0):
            out.print(plain(f"{starting} of {number} {kind} workers are starting", "dim"))
        if lacking := max(number - there - starting, 0):
            out.print(plain(f"{lacking} of {number} {kind} workers are missing", "yellow"))
