"""The packages of the extra `report`."""

from __future__ import annotations

from types import ModuleType

from ptxgym import extras

MODULES = ("jinja2", "vl_convert")


def need(module: str) -> ModuleType:
    """Return a module of the extra.

    Raises:
        UsageError: if its package is not installed.
    """
    return extras.need(module, "a report needs", "report")


def check() -> None:
    """Import all of them, before any work is done.

    Raises:
        UsageError: if one is not installed.
    """
    for module in MODULES:
        need(module)
