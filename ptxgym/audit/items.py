"""The checklist: every item with what must hold, where that is written, and which findings violate it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """One thing that the contract asks for."""

    name: str
    group: str
    title: str
    source: str
    codes: tuple[str, ...] = ()
    """Findings and failures that speak against it; one that ends in a dot stands for all that begin so."""
    needs: tuple[str, ...] = ()
    """Features of which the kernels must use one, or the item does not apply (`kernels.FEATURES`)."""
    by_run: bool = True
    """Whether only a run that came to its end shows that it holds."""


_LAUNCH = (
    Item("host.compiles", "host", "The file compiles and exports `run` as the task declares it.", "task", by_run=False),
    Item(
        "host.records",
        "host",
        "The host code sets up and launches without an error at both shapes.",
        "task",
        by_run=False,
    ),
    Item(
        "launch.block",
        "launch",
        "Grid and block are within the limits and within `__launch_bounds__`.",
        "CUDA C++ Programming Guide, compute capabilities",
        ("launch.grid", "launch.block", "launch.bounds"),
        by_run=False,
    ),
    Item(
        "launch.registers",
        "launch",
        "Registers of all threads fit the SM; `setmaxnreg` asks for no more than the launch has.",
        "PTX ISA 9.7.19.5",
        ("launch.registers", "setmaxnreg."),
    ),
    Item(
        "launch.cluster",
        "launch",
        "The cluster divides the grid and is legal; its CTAs meet and outlive each other's copies.",
        "CUDA C++ Programming Guide, thread block clusters",
        ("launch.cluster_", "cluster."),
        ("cluster",),
    ),
    Item(
        "launch.sizes", "launch", "The plan follows the axes: no size is written into the code.", "task", by_run=False
    ),
)

_SHARED = (
    Item(
        "smem.sum",
        "shared memory",
        "Static and dynamic shared memory fit the SM, and `cudaFuncSetAttribute` allows them.",
        "CUDA C++ Programming Guide, shared memory",
        ("launch.shared_memory",),
        ("smem",),
        by_run=False,
    ),
    Item(
        "smem.base",
        "shared memory",
        "Swizzled tiles begin where the pattern does: 1024 bytes for 128B swizzle.",
        "PTX ISA 5.5",
        ("tma.swizzle_base",),
        ("swizzle",),
    ),
    Item(
        "smem.bounds",
        "shared memory",
        "Loads and stores stay inside their arrays and buffers, aligned to their width.",
        "PTX ISA 6.4.1",
        ("memory.out_of_bounds", "memory.misaligned", "memory.read_only", "smem.out_of_array"),
    ),
    Item(
        "smem.races",
        "shared memory",
        "Nothing is read before it is written, nor while another thread writes it.",
        "PTX ISA 8",
        (
            "smem.race",
            "global.race",
            "global.not_read_only",
            "smem.uninitialised",
            "memory.uninitialised",
            "memory.lane_conflict",
            "register.uninitialised",
        ),
    ),
)

_ENCODE = "CUDA driver API, cuTensorMapEncodeTiled"
_MAPS = (
    Item(
        "map.box",
        "tensor maps",
        "Boxes have 1 to 256 elements a dimension and a multiple of 16 bytes a row.",
        _ENCODE,
        needs=("map",),
        by_run=False,
    ),
    Item(
        "map.swizzle", "tensor maps", "A box row is no longer than the swizzle.", _ENCODE, needs=("map",), by_run=False
    ),
    Item(
        "map.strides",
        "tensor maps",
        "Global strides are multiples of 16 bytes, in bytes; element strides are 1 to 8.",
        _ENCODE,
        needs=("map",),
        by_run=False,
    ),
    Item(
        "map.address",
        "tensor maps",
        "Tensors begin at multiples of 16 bytes, maps lie at multiples of 64.",
        _ENCODE,
        ("tma.misaligned_map",),
        ("map",),
        by_run=False,
    ),
    Item(
        "map.interleave",
        "tensor maps",
        "Type, interleave and fill belong together.",
        _ENCODE,
        needs=("map",),
        by_run=False,
    ),
    Item(
        "map.extent",
        "tensor maps",
        "Each map stays inside its buffer and covers the same part of it at both shapes.",
        "task",
        needs=("map",),
        by_run=False,
    ),
    Item(
        "map.use",
        "tensor maps",
        "Copies use maps that exist, with as many coordinates as dimensions.",
        "PTX ISA 9.7.9.25",
        ("tma.not_a_tensor_map", "tma.rank_mismatch", "tma.reduction_type", "emulator.tensor_map"),
        ("map",),
    ),
)

_COPIES = (
    Item(
        "copy.target",
        "copies",
        "Copies have aligned addresses and whole sizes, and stay inside shared memory.",
        "PTX ISA 9.7.9.25",
        (
            "tma.misaligned",
            "tma.out_of_bounds",
            "tma.overlapping_rows",
            "bulk.misaligned",
            "bulk.out_of_bounds",
            "bulk.size",
            "cp_async.source_size",
        ),
        ("copy",),
    ),
    Item(
        "copy.coordinates",
        "copies",
        "Boxes lie where the tensor is.",
        "PTX ISA 5.5",
        ("tma.coordinate", "tma.box", "tma.box_outside", "tma.global_out_of_bounds", "bulk.global_out_of_bounds"),
        ("copy",),
    ),
    Item(
        "copy.groups",
        "copies",
        "Bulk stores and cp.async are committed, and waited for before reuse and exit.",
        "PTX ISA 9.7.9.25.4",
        ("bulk.not_committed", "bulk.pending_at_exit", "cp_async.pending_at_exit"),
        ("bulk_group", "cp.async"),
    ),
)

_BARRIERS = (
    Item(
        "mbarrier.init",
        "barriers",
        "Each mbarrier is initialised once, before use, and the others are told of it.",
        "PTX ISA 9.7.13.15",
        (
            "mbarrier.init",
            "mbarrier.init_not_visible",
            "mbarrier.uninitialised",
            "mbarrier.overwritten",
            "mbarrier.bad_count",
            "mbarrier.too_many",
            "mbarrier.reinitialised",
            "cluster.mbarrier_elsewhere",
        ),
        ("mbarrier",),
    ),
    Item(
        "mbarrier.bytes",
        "barriers",
        "In every phase expect_tx announces exactly the bytes that copies bring.",
        "PTX ISA 9.7.13.15.5",
        ("mbarrier.tx_left", "mbarrier.tx_overflow"),
        ("expect_tx",),
    ),
    Item(
        "mbarrier.arrivals",
        "barriers",
        "Arrivals fit the count of mbarrier.init: none too many for a phase, none missing to a wait.",
        "PTX ISA 9.7.13.15",
        ("mbarrier.over_arrival", "mbarrier.no_complete", "mbarrier.zero_count", "mbarrier.dropped_to_zero"),
        ("mbarrier",),
    ),
    Item(
        "mbarrier.parity",
        "barriers",
        "A waiter cannot miss a phase: its parity never comes round unseen.",
        "PTX ISA 9.7.13.15",
        ("mbarrier.phase_skipped",),
        ("mbarrier",),
    ),
    Item(
        "mbarrier.waits",
        "barriers",
        "Every wait ends.",
        "PTX ISA 9.7.13.15",
        ("emulator.deadlock", "emulator.livelock", "emulator.endless_loop"),
    ),
    Item(
        "barrier.named",
        "barriers",
        "bar.sync counts the threads that reach it.",
        "PTX ISA 9.7.13.1",
        ("barrier.",),
        ("bar.sync",),
    ),
)

_ORDER = (
    Item(
        "order.read",
        "order",
        "Nothing is read before the wait for the copy that brings it.",
        "PTX ISA 9.7.9.25",
        ("async.read_early",),
        ("async",),
    ),
    Item(
        "order.overwrite",
        "order",
        "No slot is filled again while it is still being read.",
        "PTX ISA 9.7.15.1",
        ("async.overwrite",),
        ("async",),
    ),
    Item(
        "order.proxy",
        "order",
        "fence.proxy.async stands between ordinary writes and asynchronous reads of them.",
        "PTX ISA 9.7.13.4",
        ("proxy.",),
        ("async",),
    ),
    Item(
        "wgmma.fence",
        "order",
        "wgmma.fence stands before the first wgmma and after registers were written.",
        "PTX ISA 9.7.15.7.1",
        ("wgmma.missing_fence", "wgmma.uninitialised"),
        ("wgmma",),
    ),
    Item(
        "wgmma.wait",
        "order",
        "wgmma is committed, and waited for before its registers are touched and before exit.",
        "PTX ISA 9.7.15.7.2 and 3",
        ("wgmma.not_committed", "wgmma.pending_at_exit", "wgmma.register_in_flight"),
        ("wgmma",),
    ),
    Item(
        "wgmma.collective",
        "order",
        "All 128 threads of a warpgroup execute each wgmma with equal operands.",
        "PTX ISA 9.7.15.5",
        ("wgmma.incomplete_warpgroup", "wgmma.partial_warp", "wgmma.operands_differ"),
        ("wgmma",),
    ),
    Item(
        "tcgen05.commit",
        "order",
        "tcgen05.commit follows the products, to an mbarrier that is waited on.",
        "PTX ISA 9.7.16.12",
        ("tcgen05.commit_unseen", "tcgen05.not_committed"),
        ("tcgen05.mma",),
    ),
    Item(
        "tcgen05.fences",
        "order",
        "tcgen05.fence stands on both sides of every hand-over between threads.",
        "PTX ISA 9.7.16.11",
        ("tcgen05.missing_fence", "tcgen05.missing_fence_before", "tcgen05.unordered"),
        ("tcgen05",),
    ),
    Item(
        "tcgen05.waits",
        "order",
        "Tensor memory is read after the product, and written after the last read.",
        "PTX ISA 9.7.16.6",
        ("tmem.read_early", "tmem.overwrite", "tmem.dealloc_in_use", "tmem.sums_lost"),
        ("tcgen05",),
    ),
    Item(
        "tcgen05.collective",
        "order",
        "Whole warps, and both CTAs of a pair, execute what is collective, with equal operands.",
        "PTX ISA 9.7.16.3",
        ("tcgen05.partial_warp", "tcgen05.operands_differ", "tcgen05.no_pair"),
        ("tcgen05",),
    ),
)

_MATRIX = "PTX ISA 9.7.15.5.1 and 9.7.16.4.1"
_DESCRIPTORS = (
    Item(
        "descriptor.start",
        "descriptors",
        "Descriptors start inside shared memory, with reserved bits and version as they must be.",
        _MATRIX,
        ("descriptor.out_of_bounds", "descriptor.reserved_bits", "descriptor.version", "descriptor.leading_mode"),
        ("descriptor",),
    ),
    Item(
        "descriptor.offsets",
        "descriptors",
        "Leading and stride offset and the steps read every byte of a tile, none of them twice.",
        _MATRIX,
        ("descriptor.overlap", "descriptor.unread"),
        ("descriptor",),
    ),
    Item(
        "descriptor.swizzle",
        "descriptors",
        "A descriptor has the swizzle of the copy that filled the tile.",
        _MATRIX,
        ("descriptor.swizzle_mismatch", "descriptor.swizzle", "descriptor.swizzle_base"),
        ("descriptor",),
    ),
    Item(
        "descriptor.base_offset",
        "descriptors",
        "The base offset is 0 for tiles that tensor copies write.",
        _MATRIX,
        ("descriptor.base_offset",),
        ("descriptor",),
    ),
    Item(
        "instruction.fields",
        "descriptors",
        "Shape, types and transpose bits of the instruction are legal and those of the data.",
        "PTX ISA 9.7.15.2 and 9.7.16.4.2",
        ("tcgen05.instruction_descriptor", "descriptor.element_type"),
        ("wgmma", "tcgen05.mma"),
    ),
)

_TENSOR_MEMORY = (
    Item(
        "tmem.columns",
        "tensor memory",
        "Columns are a power of two from 32 to 512, and at most 512 in all.",
        "PTX ISA 9.7.16.7.1",
        ("tmem.bad_columns", "tmem.alloc_increases"),
        ("tmem",),
    ),
    Item(
        "tmem.dealloc",
        "tensor memory",
        "Everything allocated is freed before exit, with its own address and number.",
        "PTX ISA 9.7.16.7.1",
        ("tmem.leak", "tmem.bad_dealloc"),
        ("tmem",),
    ),
    Item(
        "tmem.permit",
        "tensor memory",
        "The right to allocate is given up once, after the last alloc.",
        "PTX ISA 9.7.16.7.1",
        ("tmem.alloc_after_relinquish",),
        ("tmem",),
    ),
    Item(
        "tmem.addresses",
        "tensor memory",
        "Accesses stay inside allocated columns and own lanes, and read what was written.",
        "PTX ISA 9.7.16.1",
        (
            "tmem.not_allocated",
            "tmem.out_of_bounds",
            "tmem.lanes",
            "tmem.uninitialised",
            "tmem.alignment",
            "tmem.pair_",
        ),
        ("tmem",),
    ),
)

_RESULTS = (
    Item("output.written", "results", "Every element of every output is written, at both shapes.", "task"),
    Item("input.kept", "results", "Inputs are left as they were.", "task"),
    Item("run.clean", "results", "Nothing else that the emulator finds.", "ptxgym's findings"),
)

ITEMS: tuple[Item, ...] = (
    *_LAUNCH,
    *_SHARED,
    *_MAPS,
    *_COPIES,
    *_BARRIERS,
    *_ORDER,
    *_DESCRIPTORS,
    *_TENSOR_MEMORY,
    *_RESULTS,
)
REST = "run.clean"
"""Takes the findings that no other item names."""


def item_of(code: str) -> str:
    """Return the name of the item against which a finding or failure speaks."""
    named = {known: item.name for item in ITEMS for known in item.codes}
    prefixes = (known for known in named if known[-1] in "._" and code.startswith(known))
    return named[code] if code in named else named.get(next(prefixes, ""), REST)
