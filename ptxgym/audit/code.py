"""Checks of the PTX alone: instructions that belong together, and the constants in operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ptxgym.audit.facts import Facts
from ptxgym.audit.kernels import Use
from ptxgym.audit.observation import Observation, kept, unknown, violated
from ptxgym.audit.plans import box_bytes
from ptxgym.build import Build
from ptxgym.build.demangle import function_name
from ptxgym.device.emulator.device import resident_ctas_per_sm

_PARTNERS = (
    ("wgmma", "wgmma.fence", "wgmma.fence", "wgmma.fence.sync.aligned before the first wgmma of a group"),
    ("wgmma", "wgmma.commit", "wgmma.wait", "wgmma.commit_group after the wgmma of a group"),
    ("wgmma", "wgmma.wait", "wgmma.wait", "wgmma.wait_group before the accumulators are used"),
    ("tcgen05.mma", "tcgen05.commit", "tcgen05.commit", "tcgen05.commit to an mbarrier after the products"),
    ("tcgen05.ld", "tcgen05.wait_ld", "tcgen05.waits", "tcgen05.wait::ld before the registers are used"),
    ("tcgen05.st", "tcgen05.wait_st", "tcgen05.waits", "tcgen05.wait::st before the cells are handed on"),
    ("alloc", "dealloc", "tmem.dealloc", "tcgen05.dealloc of all columns before the kernel exits"),
    ("bulk_group", "bulk.commit", "copy.groups", "cp.async.bulk.commit_group after the stores"),
    ("bulk_group", "bulk.wait", "copy.groups", "cp.async.bulk.wait_group before the source is reused and before exit"),
    ("cp.async", "cp.async.commit", "copy.groups", "cp.async.commit_group, or an mbarrier arrival, after the copies"),
    ("cp.async", "cp.async.wait", "copy.groups", "cp.async.wait_group, or a wait on the mbarrier"),
    ("load", "init", "mbarrier.init", "mbarrier.init of the barrier that the copies signal"),
    ("load", "try_wait", "order.read", "mbarrier.try_wait on the barrier that the copies signal"),
)
"""Where a kernel uses the first, it needs the second; the item; what is missing."""

_PLACES = (
    ("copy.target", {"load": "loads", "store": "stores", "cp.async": "cp.async"}),
    ("copy.groups", {"bulk.commit": "commit_group", "bulk.wait": "wait_group", "cp.async.wait": "cp.async.wait"}),
    ("mbarrier.init", {"init": "mbarrier.init", "fence.mbarrier_init": "fence.mbarrier_init"}),
    ("mbarrier.waits", {"try_wait": "waits"}),
    ("barrier.named", {"bar.sync": "bar.sync"}),
    ("order.proxy", {"proxy": "fence.proxy.async"}),
    ("wgmma.fence", {"wgmma.fence": "wgmma.fence"}),
    ("wgmma.wait", {"wgmma.commit": "commit_group", "wgmma.wait": "wait_group"}),
    ("wgmma.collective", {"wgmma": "wgmma.mma_async"}),
    ("tcgen05.commit", {"tcgen05.commit": "tcgen05.commit"}),
    ("tcgen05.fences", {"tcgen05.fence": "tcgen05.fence"}),
    ("tcgen05.waits", {"tcgen05.wait_ld": "wait::ld", "tcgen05.wait_st": "wait::st"}),
    ("tmem.dealloc", {"dealloc": "tcgen05.dealloc"}),
    ("launch.registers", {"setmaxnreg": "setmaxnreg"}),
)
"""Items that name where the instructions stand that keep them."""

_WGMMA_SWIZZLES = {0: "no", 1: "128B", 2: "64B", 3: "32B"}
_TCGEN05_SWIZZLES = {0: "no", 1: "128B (atoms of 32 B)", 2: "128B", 4: "64B", 6: "32B"}


def check_partners(facts: Facts) -> Iterator[Observation]:
    """Is what belongs together there at all? Whether it stands in the right place only the runs tell."""
    for kernel in facts.kernels:
        for used, needed, item, what in _PARTNERS:
            first = kernel.uses.get(used)
            if first and needed not in kernel.uses:
                name = function_name(kernel.name)
                yield violated(
                    item, f"{name} uses {first[0].instruction.opcode} but nowhere {what}", f"Add {what}.", first[0].line
                )


def check_places(facts: Facts) -> Iterator[Observation]:
    """Name the lines of what keeps an item, so that its reader looks there first."""
    for item, features in _PLACES:
        for feature, label in features.items():
            lines = sorted({use.line for use in facts.uses(feature) if use.line})
            if lines:
                yield kept(item, f"{label} at line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}")


def check_tensor_memory(facts: Facts) -> Iterator[Observation]:
    """Columns that are constants, and whether the permit matters: it does where several CTAs share an SM."""
    for kernel in facts.kernels:
        allocated = [kernel.constant(use.instruction.operands[1]) for use in kernel.uses.get("alloc", ())]
        name = function_name(kernel.name)
        if allocated:
            known = [columns for columns in allocated if columns is not None]
            text = " + ".join(map(str, known)) if known else "columns computed at run time"
            yield kept("tmem.columns", f"{name}: {text} columns" if known else f"{name}: {text}")
        if not allocated:
            continue
        if "relinquish" in kernel.uses:
            yield kept("tmem.permit", f"{name}: relinquish_alloc_permit", kernel.uses["relinquish"][0].line)
            continue
        launch = next((one for plan in facts.recorded for one in plan.launches if one.kernel == kernel.name), None)
        if launch is not None and isinstance(facts.built, Build) and resident_ctas_per_sm(facts.built, launch) > 1:
            yield violated(
                "tmem.permit",
                f"{name} keeps the right to allocate, and several of its CTAs fit an SM: others must wait",
                "tcgen05.relinquish_alloc_permit by the allocating warp after its last alloc.",
                kernel.uses["alloc"][0].line,
            )
        else:
            yield kept("tmem.permit", f"{name}: not given up, but one CTA fills the SM")


def check_bytes(facts: Facts) -> Iterator[Observation]:
    """Name what expect_tx announces where that is a constant, beside the bytes of the boxes."""
    announced = {
        (use.kernel.constant(use.instruction.operands[-1]), use.line)
        for use in facts.uses("expect_tx")
        if use.kernel.constant(use.instruction.operands[-1]) is not None
    }
    if announced and facts.recorded:
        boxes = ", ".join(
            f"{tensor_map.global_address.buffer} {box_bytes(tensor_map):,}"
            for tensor_map in facts.recorded[0].tensor_maps
            if box_bytes(tensor_map) is not None
        )
        text = ", ".join(sorted({f"{value:,} bytes at line {line}" for value, line in announced}))
        yield kept("mbarrier.bytes", f"announced: {text}; boxes: {boxes or 'none'}")


def check_counts(facts: Facts) -> Iterator[Observation]:
    """Name the counts of mbarrier.init that are constants; a count outside of 1 … 2^20 − 1 is refused."""
    counts = [(use, use.kernel.constant(use.instruction.operands[-1])) for use in facts.uses("init")]
    known = sorted({count for _, count in counts if count is not None})
    for use, count in counts:
        if count is not None and not 1 <= count < 1 << 20:
            yield violated(
                "mbarrier.init", f"mbarrier.init with count {count}", "A count from 1 to 2^20 − 1.", use.line
            )
    if known:
        yield kept("mbarrier.arrivals", f"counts of mbarrier.init: {', '.join(map(str, known))}")


_NARROW = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_ELEMENT_TYPES: Mapping[str, Mapping[int, str]] = {
    "f16": {0: "f16", 1: "bf16"}, "tf32": {2: "tf32"}, "i8": {0: "u8", 1: "s8"}, "f8f6f4": _NARROW,
    "f4": {1: "e2m1"}, "f4nvf4": {1: "e2m1"},
}  # fmt: skip
"""Kind of `tcgen05.mma` (without `mx`) → what its instruction descriptor calls element types (PTX ISA 9.7.16.4.2)."""


def check_descriptors(facts: Facts) -> Iterator[Observation]:
    """Name the constant fields of descriptors, and compare their swizzle with those of all maps."""
    fields: dict[str, int | None] = {}
    for use in facts.uses("descriptor"):
        for letter, bits in _shared_descriptors(use):
            if bits is not None:
                fields.setdefault(f"{letter}: {_fields(bits, use)}", use.line)
    for text, line in fields.items():
        yield kept("descriptor.offsets", text, line)
    for text, line in {_shape(use): use.line for use in facts.uses("descriptor")}.items():
        if text:
            yield kept("instruction.fields", text, line)


def _shared_descriptors(use: Use) -> Iterator[tuple[str, int | None]]:
    operands, opcode = use.instruction.operands, use.instruction.opcode
    if opcode.startswith(("wgmma", "tcgen05.mma")):
        yield from (("A", use.kernel.high_bits(operands[1])), ("B", use.kernel.high_bits(operands[2])))


def _fields(bits: int, use: Use) -> str:
    """Spell the fields: PTX ISA 9.7.15.5.1.2.2 and 9.7.16.4.1."""
    wgmma = use.instruction.opcode.startswith("wgmma")
    swizzle = _WGMMA_SWIZZLES[bits >> 62] if wgmma else _TCGEN05_SWIZZLES.get(bits >> 61, "illegal")
    return f"leading {(bits >> 16 & 0x3FFF) << 4} B, stride {(bits >> 32 & 0x3FFF) << 4} B, {swizzle} swizzle"


def _shape(use: Use) -> str:
    opcode, operands = use.instruction.opcode, use.instruction.operands
    if opcode.startswith("wgmma"):
        transposed = [use.kernel.constant(operand) for operand in operands[-2:]]
        major = "" if None in transposed or "bf16" not in opcode else f", B {_major(transposed[1])}"
        return opcode.removeprefix("wgmma.mma_async.sync.aligned.") + major
    if not opcode.startswith("tcgen05.mma"):
        return ""
    bits = use.kernel.constant(operands[3])
    if bits is None:
        return ""
    kind = next((part.removeprefix("kind::") for part in opcode.split(".") if part.startswith("kind::")), "f16")
    types, scaled = _ELEMENT_TYPES[kind.removeprefix("mx")], kind.startswith("mx")
    a, b = (f"{types.get(bits >> at & 7, '?')} {_major(bits >> major & 1)}" for at, major in ((7, 15), (10, 16)))
    sums = "f32" if scaled else ("f16", "f32", "s32", "?")[bits >> 4 & 3]
    rows = (bits >> 27 & 3) * 128 if scaled else (bits >> 24 & 0x1F) * 16
    return f"M {rows}, N {(bits >> 17 & 0x3F) * 8}, A {a}, B {b}, D {sums}"


def _major(transposed: int | None) -> str:
    return "MN-major" if transposed else "K-major"


def check_readable(facts: Facts) -> Iterator[Observation]:
    """Say where the PTX could not be read, so that nothing is claimed of it."""
    if isinstance(facts.built, Build) and not facts.readable:
        yield unknown("run.clean", "the PTX of the kernels could not be read")
