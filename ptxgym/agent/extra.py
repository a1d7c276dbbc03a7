"""The packages of the extra `agents`."""

from __future__ import annotations

from types import ModuleType

from ptxgym.extras import need


def jinja() -> ModuleType:
    """Return jinja2.

    Raises:
        UsageError: if it is not installed.
    """
    return need("jinja2", "prompt templates need", "agents")


def openai() -> ModuleType:
    """Return openai.

    Raises:
        UsageError: if it is not installed.
    """
    return need("openai", "agents that call a model need", "agents")
