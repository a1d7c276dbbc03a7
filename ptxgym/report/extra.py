"""The packages of the extra `report`, imported where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from ptxgym.errors import UsageError

PACKAGES = {"jinja2": "jinja2", "vl_convert": "vl-convert-python"}
"""Modules, and the distributions that hold them."""


def need(module: str) -> ModuleType:
    """Return a module of the extra, or a submodule of one.

    Raises:
        UsageError: if its package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = PACKAGES[module.partition(".")[0]]
        raise UsageError(f"a report needs the package {package}: pip install 'ptxgym[report]'") from error


def check() -> None:
    """Import all of them, before any work is done.

    Raises:
        UsageError: if one is not installed.
    """
    for module in PACKAGES:
        need(module)
