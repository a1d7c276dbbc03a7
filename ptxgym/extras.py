"""Packages of ptxgym's extras, imported where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from ptxgym.errors import UsageError

DISTRIBUTIONS = {"vl_convert": "vl-convert-python", "nemo_gym": "nemo-gym"}
"""What pip calls a module's package, where the two differ."""


def need(module: str, who: str, extra: str) -> ModuleType:
    """Return a module of an extra.

    Args:
        module: As Python imports it.
        who: Who needs it, with the verb: `a report needs`.
        extra: The extra that installs it.

    Raises:
        UsageError: if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(module, who, extra) from error


def missing(module: str, who: str, extra: str) -> UsageError:
    """Return what to raise where a module is not installed; for arguments see `need`."""
    root = module.partition(".")[0]
    return UsageError(f"{who} the package {DISTRIBUTIONS.get(root, root)}: pip install 'ptxgym[{extra}]'")
