"""The trainers' libraries, each an extra of its own."""

from __future__ import annotations

from ptxgym.errors import UsageError


def missing(package: str, extra: str) -> UsageError:
    """Return what to raise where an adapter is imported and its library is not installed.

    Args:
        package: As Python imports it.
        extra: Of ptxgym, which installs it.
    """
    return UsageError(f"this adapter needs the package {package}: pip install 'ptxgym[{extra}]'")
