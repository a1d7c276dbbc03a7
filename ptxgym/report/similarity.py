"""How much of a kernel stands in another text: containment of token shingles.

The measure is A. Broder's containment ("On the resemblance and containment of documents", 1997): the share of the
kernel's distinct runs of `SHINGLE` tokens that the other text has, too. Tokens are normalised as in clone detection:
comments and layout go, names become one token, numbers another; words of CUDA and of inline PTX stay as they are.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ptxgym.errors import UsageError
from ptxgym.knowledge import load_pack, template_text
from ptxgym.task import load_task, oracle

SHINGLE = 12
"""Tokens. Shorter runs are shared by all CUDA code, longer ones are broken by any edit."""
THRESHOLD = 0.7
"""From here on a kernel is flagged. The oracles of GEMM and attention, which share helpers, reach 0.58 of one another;
a simpler kernel of GEMM by the same hand has 0.80 of its oracle."""

_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"|[A-Za-z_]\w*|\.?\d[\w.]*|::|->|<<<|>>>|\S', re.DOTALL
)
_PTX = re.compile(r"[A-Za-z][\w.:]*|%\w+|\d+|[^\s\\]")
_KEPT = frozenset(
    {
        "asm", "break", "case", "const", "constexpr", "continue", "do", "else", "extern", "float", "for", "if",
        "inline", "int", "long", "return", "short", "static", "struct", "switch", "template", "typename", "unsigned",
        "using", "void", "volatile", "while",
    }
)  # fmt: skip
_CUDA = re.compile(r"__|cuda|CU_|cu[A-Z]|threadIdx|blockIdx|blockDim|gridDim")

Shingles = frozenset[tuple[str, ...]]


@dataclass(frozen=True)
class Likeness:
    """How much of a kernel stands elsewhere, in [0, 1]; None where there is nothing to compare with."""

    oracle: float | None
    templates: float | None

    @property
    def flagged(self) -> bool:
        """Whether either reaches the threshold."""
        return max(self.oracle or 0.0, self.templates or 0.0) >= THRESHOLD


def tokens(text: str) -> list[str]:
    """Return the normalised tokens of a CUDA text."""
    found: list[str] = []
    for token in _TOKEN.findall(text):
        if token.startswith(("//", "/*")):
            continue
        if token[0] == '"':
            found += _PTX.findall(token[1:-1])
        elif token[0].isalpha() or token[0] == "_":
            found.append(token if token in _KEPT or _CUDA.match(token) else "name")
        elif token[0].isdigit() or (token[0] == "." and len(token) > 1):
            found.append("number")
        else:
            found.append(token)
    return found


def shingles(text: str) -> Shingles:
    """Return the distinct runs of `SHINGLE` tokens; of a shorter text, the text itself as its only run."""
    found = tokens(text)
    if not found:
        return frozenset()
    return frozenset(tuple(found[at : at + SHINGLE]) for at in range(max(1, len(found) - SHINGLE + 1)))


def containment(kernel: Shingles, other: Shingles) -> float:
    """Return the share of the kernel's runs that `other` has; 0 for an empty kernel."""
    return len(kernel & other) / len(kernel) if kernel else 0.0


def likeness(source: str, task: str, arch: str) -> Likeness:
    """Compare a kernel with the oracle of its task, and with the template functions of its architecture's pack."""
    own = shingles(source)
    known = references(task, arch)
    found: Mapping[str, float] = {name: containment(own, other) for name, other in known.items()}
    return Likeness(found.get("oracle"), found.get("templates"))


@functools.cache
def references(task: str, arch: str) -> dict[str, Shingles]:
    """Return the shingles of what kernels are compared with, as far as it is here: a wheel carries no oracles."""
    found = {}
    with contextlib.suppress(UsageError):  # a wheel, or somebody else's task: the page shows that nothing was compared
        known = load_task(task)
        found["oracle"] = shingles(known.source(oracle(known, arch)))
    with contextlib.suppress(UsageError):  # an architecture without a pack
        found["templates"] = shingles(template_text(load_pack(arch)))
    return found
