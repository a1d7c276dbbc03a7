"""The packages of the extra `agents`, imported where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from ptxgym.errors import UsageError


def jinja() -> ModuleType:
    """Return jinja2.

    Raises:
        UsageError: if it is not installed.
    """
    return _need("jinja2", "prompt templates")


def openai() -> ModuleType:
    """Return openai.

    Raises:
        UsageError: if it is not installed.
    """
    return _need("openai", "agents that call a model")


def _need(name: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{what} need the package {name}: pip install 'ptxgym[agents]'") from error
