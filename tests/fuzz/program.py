"""Random programs as trees of statements, which say the same to the interpreter and, as text, to the emulator.

Programs are free of races and of anything that the PTX ISA leaves open, so that every schedule gives one result, and
an emulator that complains is wrong. Registers: %h (16 bits), %r (32), %d (64), %p; the text has others for addresses,
loops and member masks. Memory: every thread has SLOT bytes of its own in shared, global and local memory; all read one
TABLE; CELLS are for reductions by anyone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SLOT = 64
"""Bytes of each thread in shared, global and local memory."""
TABLE = 256
"""Bytes that all threads read."""
COUNTS = {"h": 8, "r": 8, "d": 8, "p": 4}
"""Registers of a program, by the letter of their names."""
CELLS = (
    ("add", "u32"), ("add", "u64"), ("min", "u32"), ("max", "u32"), ("min", "s32"), ("max", "s32"), ("and", "b32"),
    ("or", "b32"), ("xor", "b32"), ("min", "s64"), ("max", "u64"), ("and", "b64"), ("xor", "b64"), ("inc", "u32"),
)  # fmt: skip
"""What is done to each cell: operations in whose order nothing lies."""
WRAP = 12
"""`inc` starts again at zero beyond this."""
SPACES = ("shared", "global", "local")


@dataclass(frozen=True)
class Op:
    """An instruction on registers: a key of FORMS."""

    form: str
    results: tuple[str, ...]
    sources: tuple[str | int, ...]
    guard: str = ""
    """`%p1`, `!%p1` or nothing."""


@dataclass(frozen=True)
class Access:
    """A load or store of `registers`, elements of one type, in the thread's own slot or the table."""

    load: bool
    space: str
    """shared, global, local; table and const are the table."""
    kind: str
    registers: tuple[str, ...]
    offset: int
    index: str = ""
    """A 32-bit register whose low bits choose the place instead of `offset`."""
    generic: bool = False
    words: str = ""
    """Modifiers such as `.volatile`."""
    guard: str = ""


@dataclass(frozen=True)
class Atomic:
    """An atomic operation on the thread's own slot, whose old value is used."""

    space: str
    operation: str
    kind: str
    result: str
    sources: tuple[str, ...]
    offset: int
    generic: bool = False


@dataclass(frozen=True)
class Reduce:
    """`red`, or `atom` with an unused result, on a cell."""

    space: str
    cell: int
    source: str
    atom: bool = False
    guard: str = ""


@dataclass(frozen=True)
class Elect:
    """The one elected lane of every group adds one to the first cell of shared memory."""


@dataclass(frozen=True)
class Collective:
    """An exchange among the lanes that execute it; its member mask is theirs."""

    opcode: str
    results: tuple[str, ...]
    sources: tuple[str | int, ...]
    from_leader: bool = False
    """shfl.sync.idx from the lowest lane of the group."""


@dataclass(frozen=True)
class CtaVote:
    """barrier.red over the whole CTA."""

    operation: str
    result: str
    predicate: str
    negated: bool = False


@dataclass(frozen=True)
class Exchange:
    """Every thread stores a register to shared memory; after a barrier it loads what another one stored."""

    result: str
    source: str
    index: str
    before: str
    after: str
    """Barriers: bar, barrier, counted, mbarrier, cluster."""


@dataclass(frozen=True)
class If:
    """Divergence by a predicate."""

    predicate: str
    then: Block
    otherwise: Block
    swapped: bool = False


@dataclass(frozen=True)
class Loop:
    """`body` as often as the low two bits of a 32-bit register say, or as a number says."""

    count: str | int
    body: Block
    bottom: bool = False
    """Tested at its end, so that it runs at least once."""


@dataclass(frozen=True)
class Switch:
    """brx.idx by the low bits of a register; two or four cases."""

    selector: str
    cases: tuple[Block, ...]


@dataclass(frozen=True)
class Exit:
    """Threads whose predicate holds, except thread 0, store their registers and end."""

    predicate: str


Statement = Op | Access | Atomic | Reduce | Elect | Collective | CtaVote | Exchange | If | Loop | Switch | Exit
Block = tuple[Statement, ...]


@dataclass(frozen=True)
class Shape:
    """The launch."""

    grid: int = 1
    block: int = 32
    cluster: int = 1
    schedule: str = "fair"
    seed: int = 0
    threads: int = 1


@dataclass(frozen=True)
class Fuzzed:
    """A program, its launch and its inputs."""

    body: Block
    shape: Shape = field(default_factory=Shape)
    data: int = 0
    """Seed of the registers' first values, of slots and table."""
