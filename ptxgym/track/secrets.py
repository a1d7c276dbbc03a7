"""What must not leave the machine: keys, tokens, and what hidden inputs are drawn from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LEAST_CHARACTERS = 8
"""Of a secret; whatever is shorter stands in texts by chance."""
STANDS_FOR = "…"
_NAMES = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)", re.I)
_PIECE_BYTES = 1 << 20


def is_secret(name: str) -> bool:
    """Return whether an environment variable of this name holds a secret."""
    return _NAMES.search(name) is not None


def without_secrets(environ: Mapping[str, str], kept: str) -> dict[str, str]:
    """Return the variables that hold no secret, and those whose names begin with `kept`."""
    return {name: value for name, value in environ.items() if name.startswith(kept) or not is_secret(name)}


class Redactor:
    """Takes known secrets out of whatever is written down."""

    def __init__(self, environ: Mapping[str, str], others: Iterable[str] = ()) -> None:
        """Take the secrets among the variables of an environment, and others."""
        found = {*(value for name, value in environ.items() if is_secret(name)), *others}
        known = sorted({each.strip() for each in found if len(each.strip()) >= LEAST_CHARACTERS}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, known))) if known else None
        self._bytes = [each.encode(errors="surrogateescape") for each in known]

    def __call__(self, value: Any) -> Any:
        """Return a JSON value with secrets replaced, in names as well."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self._pattern.sub(STANDS_FOR, value)
        if isinstance(value, Mapping):
            return {self(name): self(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self(item) for item in value]
        return value

    def clean(self, path: Path) -> bool:
        """Return whether a file holds no secret; one that cannot be read counts as one that does."""
        longest = max(map(len, self._bytes), default=0)
        try:
            with path.open("rb") as opened:
                rest = b""
                while piece := opened.read(_PIECE_BYTES):
                    if any(secret in rest + piece for secret in self._bytes):
                        return False
                    rest = piece[-longest:] if longest else b""
        except OSError:
            return False
        return True
