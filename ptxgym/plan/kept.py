"""What later calls find as earlier ones left it, and which words of parameters may differ because they count calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

COUNTS_MOST = 1 << 31
"""By how much a count of 8 bytes may go up or down: beyond, its halves are looked at one by one."""


class Different(Exception):
    """Raised where a later call is none of its own: what differs, the way out, and in which of its operations.

    Where it is found out after other calls, `call` says in which one it was; the first is 0.
    """

    def __init__(self, what: str, advice: str, operation: int | None = None) -> None:
        """Keep the parts of a message."""
        super().__init__(what)
        self.what, self.advice, self.operation = what, advice, operation
        self.call: int | None = None


Place = tuple[int, int, int]
"""Operation and parameter of a first call, and the byte within the parameter."""


@dataclass(frozen=True)
class Counter:
    """A word that differs."""

    place: Place
    more: int
    """Than in a first call."""
    different: Different
    """What is wrong if it counts nothing."""


@dataclass
class Kept:
    """What later calls find as earlier ones left it, over all that were compared."""

    names: dict[str, None] = field(default_factory=dict)
    counters: dict[Place, dict[int, tuple[int, Different]]] = field(default_factory=dict)
    """How much more a word is in which call."""

    def check_counters(self, calls: int) -> None:
        """Let a word of a parameter differ only if it counts calls or launches; other sizes may have more launches.

        Either it is more in every call than in the one before, or the other of two values in every second call, as the
        phase of a barrier, or all that differ in one call differ by the same, and that is more in every call.

        Raises:
            Different: if it does anything else.
        """
        everywhere = self.counters.values()
        own = [seen for seen in everywhere if _counts({call: more for call, (more, _) in seen.items()}, calls)]
        known = {(call, more) for seen in own for call, (more, _) in seen.items()}
        rest: dict[int, dict[int, Different]] = {}
        for seen in everywhere:
            for call, (more, different) in seen.items():
                if (call, more) not in known:
                    rest.setdefault(call, {}).setdefault(more, different)
        alike = {call: next(iter(each)) for call, each in rest.items() if len(each) == 1}
        if rest and not _grows(alike, calls):
            call = min(rest)
            different = next(iter(rest[call].values()))
            different.call = call
            raise different
        if self.counters:
            self.names.setdefault("a count of calls")


def _counts(more: Mapping[int, int], calls: int) -> bool:
    """Return whether a word counts calls, or tells odd from even ones."""
    return _grows(more, calls) or (sorted(more) == list(range(1, calls + 1, 2)) and len(set(more.values())) == 1)


def _grows(more: Mapping[int, int], calls: int) -> bool:
    """Return whether there is a number for each later call, and it goes one way from 0 on."""
    if sorted(more) != list(range(1, calls + 1)):
        return False
    steps = [more[call] - more.get(call - 1, 0) for call in sorted(more)]
    return min(steps) > 0 or max(steps) < 0


def changed_words(one: bytes, two: bytes) -> dict[int, int]:
    """Return by offset how much more each word of a parameter is in `two`, where it differs.

    Two words side by side are one of 8 bytes where it goes up or down by little, as a count does.
    """
    found = dict[int, int]()
    for at in range(0, len(one), 8):
        a, b = (raw[at : at + 8].ljust(8, b"\0") for raw in (one, two))
        more = {0: _integer(b) - _integer(a)}
        if abs(more[0]) >= COUNTS_MOST:
            more = {half: _integer(b[half : half + 4]) - _integer(a[half : half + 4]) for half in (0, 4)}
        found |= {at + half: steps for half, steps in more.items() if steps}
    return found


def _integer(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)
