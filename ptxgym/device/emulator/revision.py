"""Which emulator this is: verdicts of different ones are not the same."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import ptxgym


@functools.cache
def emulator_revision() -> str:
    """Return 16 hex digits that change with any source file of the emulator, whatever the machine."""
    package = Path(ptxgym.__file__).parent
    files = [*(package / "native" / "emulator").rglob("*"), *(package / "device" / "emulator").glob("*.py")]
    total = hashlib.sha256()
    for file in sorted(file for file in files if file.suffix in (".cpp", ".hpp", ".def", ".py")):
        data = file.read_bytes()
        total.update(f"{file.name} {len(data)}\n".encode() + data)
    return total.hexdigest()[:16]
