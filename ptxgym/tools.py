"""Starting the machine's own tools, such as compilers: what keeps them from starting is a failure of the machine."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Mapping, Sequence

from ptxgym.errors import InfrastructureError

_SCARCE = frozenset({errno.EAGAIN, errno.ENOMEM})


def run_tool(
    command: Sequence[str | os.PathLike[str]], *, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end without input; return its status and what it said.

    Args:
        command: The program and its arguments.
        env: Its environment; by default this process's.

    Raises:
        InfrastructureError: if it cannot be started; the message names the tool and the way out.
    """
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", env=env
        )
    except OSError as error:
        raise cannot_start(os.fspath(command[0]), error) from error


def cannot_start(tool: str, error: OSError) -> InfrastructureError:
    """Return what to raise where `tool` did not start."""
    way_out = ""
    if scarce(error):
        way_out = "; no more processes or memory: end some, or raise `ulimit -u` and the limits of the container"
    return InfrastructureError(f"cannot start {tool}: {error.strerror or error}{way_out}")


def scarce(error: OSError) -> bool:
    """Return whether the machine ran out of processes or memory, rather than having no such program."""
    return error.errno in _SCARCE
