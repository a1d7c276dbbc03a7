"""The evaluation service: many evaluations on many machines, one interface whatever the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptxgym.cluster.fleet import Fleet
    from ptxgym.cluster.protocol import Request, Service, ServiceStatus, Ticket
    from ptxgym.cluster.service import EvaluationService
    from ptxgym.cluster.wants import asking

__all__ = ["EvaluationService", "Fleet", "Request", "Service", "ServiceStatus", "Ticket", "asking"]

_PLACES = {"EvaluationService": "service", "asking": "wants", "Fleet": "fleet"}


def __getattr__(name: str) -> Any:
    """Import what is asked for: a worker process takes its core before anything heavy is there."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES.get(name, 'protocol')}"), name)
