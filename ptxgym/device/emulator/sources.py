"""Which section of the PTX ISA each rule of the grammar was written from (sections as numbered in version 9.0)."""

from __future__ import annotations

from collections.abc import Mapping

from ptxgym.device.emulator.decode_grammar import Rule

CHAPTERS: Mapping[str, str] = {
    "9.7.1": "Integer arithmetic",
    "9.7.2": "Extended-precision integer arithmetic",
    "9.7.3": "Floating point",
    "9.7.4": "Half-precision floating point",
    "9.7.6": "Comparison and selection",
    "9.7.7": "Half-precision comparison",
    "9.7.8": "Logic and shifts",
    "9.7.9": "Data movement and conversion",
    "9.7.12": "Control flow",
    "9.7.13": "Synchronization and communication",
    "9.7.14": "Matrices of a warp",
    "9.7.15": "Matrices of a warpgroup",
    "9.7.16": "Fifth-generation tensor cores",
    "9.7.19": "Miscellaneous",
}
"""Chapter → its title, in the order of the ISA."""


def _numbered(chapter: str, names: str) -> dict[str, str]:
    """Sections of a chapter that are one instruction each, in their order; `-` skips a number."""
    return {name: f"{chapter}.{n}" for n, name in enumerate(names.split(), 1) if name != "-"}


_INTEGER = _numbered(
    "9.7.1",
    "add sub mul mad mul24 mad24 sad div rem abs neg min max popc clz bfind fns brev bfe bfi szext bmsk dp4a dp2a",
)
_CARRY = _numbered("9.7.2", "add addc sub subc mad madc")
_FLOAT = _numbered(
    "9.7.3", "testp copysign add sub mul fma mad div abs neg min max rcp - sqrt rsqrt - sin cos lg2 ex2 tanh"
)
_HALF = _numbered("9.7.4", "add sub mul fma neg abs min max tanh ex2")
_COMPARISON = _numbered("9.7.6", "set setp selp slct")
_HALF_COMPARISON = _numbered("9.7.7", "set setp")
_LOGIC = _numbered("9.7.8", "and or xor not cnot lop3 shf shl shr")
_MOVES = _numbered(
    "9.7.9",
    "- - mov - - shfl prmt ld - ldu st - - - prefetch applypriority - createpolicy isspacep cvta cvt - mapa getctarank",
) | {"prefetchu": "9.7.9.15"}
_CONTROL = _numbered("9.7.12", "- - bra brx call ret exit")
_SYNCHRONIZATION = _numbered(
    "9.7.13", "barrier - - fence atom red - - vote match activemask redux griddepcontrol elect"
) | {"bar": "9.7.13.1", "membar": "9.7.13.4"}
_MATRICES = {"mma": "9.7.14.5.14", "ldmatrix": "9.7.14.5.15", "stmatrix": "9.7.14.5.16", "movmatrix": "9.7.14.5.17"}
_MISCELLANEOUS = _numbered("9.7.19", "brkpt nanosleep pmevent trap setmaxnreg")

_BY_WORDS: tuple[tuple[str, str, str], ...] = (
    ("cvt", "pack", "9.7.9.22"),
    ("ld", "nc", "9.7.9.9"),
    ("st", "async", "9.7.9.12"),
    ("red", "async", "9.7.13.7"),
    ("bar", "warp", "9.7.13.2"),
    ("barrier", "cluster", "9.7.13.3"),
    ("tensormap", "replace", "9.7.9.26"),
    ("tensormap", "cp_fenceproxy", "9.7.13.16"),
    ("clusterlaunchcontrol", "try_cancel", "9.7.13.17"),
    ("clusterlaunchcontrol", "query_cancel", "9.7.13.18"),
    ("cp", "mbarrier arrive", "9.7.13.15.15"),
    ("cp", "bulk commit_group", "9.7.9.25.6.1"),
    ("cp", "bulk wait_group", "9.7.9.25.6.2"),
    ("cp", "prefetch tensor", "9.7.9.25.5.4"),
    ("cp", "reduce tensor", "9.7.9.25.5.3"),
    ("cp", "tensor", "9.7.9.25.5.2"),
    ("cp", "bulk prefetch", "9.7.9.25.4.3"),
    ("cp", "reduce", "9.7.9.25.4.2"),
    ("cp", "bulk", "9.7.9.25.4.1"),
    ("cp", "commit_group", "9.7.9.25.3.2"),
    ("cp", "wait_group", "9.7.9.25.3.3"),
    ("cp", "wait_all", "9.7.9.25.3.3"),
    ("cp", "async", "9.7.9.25.3.1"),
    ("mbarrier", "init", "9.7.13.15.9"),
    ("mbarrier", "inval", "9.7.13.15.10"),
    ("mbarrier", "arrive_drop", "9.7.13.15.14"),
    ("mbarrier", "arrive", "9.7.13.15.13"),
    ("mbarrier", "expect_tx", "9.7.13.15.11"),
    ("mbarrier", "complete_tx", "9.7.13.15.12"),
    ("mbarrier", "test_wait", "9.7.13.15.16"),
    ("mbarrier", "try_wait", "9.7.13.15.16"),
    ("mbarrier", "pending_count", "9.7.13.15.17"),
    ("wmma", "load", "9.7.14.4.3"),
    ("wmma", "store", "9.7.14.4.4"),
    ("wmma", "mma", "9.7.14.4.5"),
    ("wgmma", "mma_async", "9.7.15.5.2"),
    ("wgmma", "fence", "9.7.15.7.1"),
    ("wgmma", "commit_group", "9.7.15.7.2"),
    ("wgmma", "wait_group", "9.7.15.7.3"),
    ("tcgen05", "alloc", "9.7.16.7.1"),
    ("tcgen05", "dealloc", "9.7.16.7.1"),
    ("tcgen05", "relinquish_alloc_permit", "9.7.16.7.1"),
    ("tcgen05", "ld", "9.7.16.8.3"),
    ("tcgen05", "st", "9.7.16.8.4"),
    ("tcgen05", "wait::ld", "9.7.16.8.5"),
    ("tcgen05", "wait::st", "9.7.16.8.5"),
    ("tcgen05", "cp", "9.7.16.9.2"),
    ("tcgen05", "shift", "9.7.16.9.3"),
    ("tcgen05", "mma ws", "9.7.16.10.9.3"),
    ("tcgen05", "mma sp", "9.7.16.10.9.2"),
    ("tcgen05", "mma", "9.7.16.10.9.1"),
    ("tcgen05", "commit", "9.7.16.12.1"),
    ("tcgen05", "fence::before_thread_sync", "9.7.16.11.1"),
    ("tcgen05", "fence::after_thread_sync", "9.7.16.11.1"),
    ("tcgen05", "fence", "9.7.16.11.1"),
    ("tcgen05", "wait", "9.7.16.8.5"),
)
"""Opcode, words that a rule has, section: the first that fits."""


def section(rule: Rule) -> str:
    """Return the section that `rule` was written from, such as `9.7.9.25.5.2`.

    Raises:
        KeyError: if no section is known: a new instruction wants its line above.
    """
    opcode = rule.opcode
    words = {choice for slot in rule.slots for choice in slot.choices}
    for name, needed, found in _BY_WORDS:
        if name == opcode and words.issuperset(needed.split()):
            return found
    of_type = [slot for slot in rule.slots if slot.name in ("stype" if opcode == "set" else "type", "kind")]
    kinds = set(of_type[0].choices) if of_type else set()
    if opcode in _CARRY and ("cc" in words or opcode in ("addc", "subc", "madc")):
        return _CARRY[opcode]
    if kinds & {"f16", "bf16", "f16x2", "bf16x2"} and opcode in (_HALF | _HALF_COMPARISON) and "f32" not in kinds:
        return (_HALF | _HALF_COMPARISON)[opcode]
    if kinds & {"f32", "f64", "f32x2"} and opcode in _FLOAT:
        return _FLOAT[opcode]
    tables = (_INTEGER, _FLOAT, _COMPARISON, _LOGIC, _MOVES, _CONTROL, _SYNCHRONIZATION, _MATRICES, _MISCELLANEOUS)
    return next(table for table in tables if opcode in table)[opcode]


def chapter(section_number: str) -> str:
    """Return the chapter of a section: `9.7.9` of `9.7.9.25.5.2`."""
    return ".".join(section_number.split(".")[:3])
