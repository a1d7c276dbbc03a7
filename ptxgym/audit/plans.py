"""Checks of what the host code asked for: launches, shared memory, tensor maps, and whether they follow the axes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ptxgym.audit.facts import Facts
from ptxgym.audit.items import REST, item_of
from ptxgym.audit.observation import Observation, kept, unknown, violated
from ptxgym.build import Build
from ptxgym.build.demangle import function_name, name_functions
from ptxgym.plan.model import Launch, LaunchPlan, TensorMap
from ptxgym.verdict import Failure

TYPE_BYTES = {
    "UINT8": 1, "UINT16": 2, "UINT32": 4, "INT32": 4, "UINT64": 8, "INT64": 8, "FLOAT16": 2, "FLOAT32": 4,
    "FLOAT64": 8, "BFLOAT16": 2, "FLOAT32_FTZ": 4, "TFLOAT32": 4, "TFLOAT32_FTZ": 4,
}  # fmt: skip
_SPAN = {"32B": 32, "64B": 64, "128B": 128}
_MAP_FIELDS = (
    (re.compile(r"of swizzle|swizzle ="), "map.swizzle"),
    (re.compile(r"interleave|tensorDataType|oobFill|l2Promotion"), "map.interleave"),
    (re.compile(r"globalAddress|tensorMap"), "map.address"),
    (re.compile(r"globalStrides|elementStrides"), "map.strides"),
    (re.compile(r"globalDim|tensorRank"), "map.extent"),
    (re.compile(r"boxDim"), "map.box"),
)

_WAYS = {
    "host.records": "Let `run` do at every legal shape what it does at the others, and check what its calls return.",
    "launch.block": "Launch at most as many threads as `__launch_bounds__` names.",
    "launch.registers": "Fewer threads, or `__launch_bounds__` with the threads of the launch.",
    "launch.cluster": "A grid that is a multiple of the cluster, and a cluster of at most 8 CTAs.",
    "smem.sum": "Fewer stages or smaller tiles; above 48 KiB cudaFuncSetAttribute must allow the dynamic bytes.",
    "map.box": "A smaller box, whose rows are a multiple of 16 bytes; split what is wider into several copies.",
    "map.swizzle": "Box rows of at most the swizzle's bytes: 64 elements of 16 bits for 128B.",
    "map.strides": "Strides in bytes, multiples of 16, and element strides of 1.",
    "map.address": "A tensor that begins at a multiple of 16 bytes, and a map that is aligned to 64.",
    "map.interleave": "A type of the data's width, CU_TENSOR_MAP_INTERLEAVE_NONE, and a fill that the type has.",
    "map.extent": "Extents from 1, innermost first, of this call.",
}
"""The way out of what the recorder refused, by item."""


def check_host(facts: Facts) -> Iterator[Observation]:
    """Did it compile, and could both calls be recorded? A failure goes to the item that it is about."""
    if isinstance(facts.built, Failure):
        at = next((d.line for d in facts.built.diagnostics if d.line), None)
        way = "Mend the first diagnostic; the others may follow from it."
        yield violated("host.compiles", facts.built.message, way, at, facts.built.code)
        return
    yield kept("host.compiles", f"{facts.built.compiler}, kernels: {len(facts.built.kernels)}")
    failed = [plan for plan in facts.plans if isinstance(plan, Failure)]
    for failure in failed[:1]:
        against = _plan_failure(failure)
        yield against
        if against.item != "host.records":
            yield violated("host.records", f"a call could not be recorded: see {against.item}", line=against.line)
    if not failed:
        yield kept("host.records", f"operations: {' and '.join(str(len(plan.operations)) for plan in facts.recorded)}")
        for call in facts.recorded[0].failed_calls:
            yield unknown("host.records", f"a call failed as on a device: {call}")


def _plan_failure(failure: Failure) -> Observation:
    message = name_functions(failure.message)
    line = next((place.line for place in failure.diagnostics if place.line), None)
    item = item_of(failure.code)
    if failure.code == "plan.tensor_map":
        item = next((name for pattern, name in _MAP_FIELDS if pattern.search(message)), "map.use")
    item = "host.records" if item == REST else item
    return violated(item, message, _WAYS.get(item), line, failure.code)


def check_launches(facts: Facts) -> Iterator[Observation]:
    """Blocks, registers and shared memory of every launch."""
    if not isinstance(facts.built, Build) or not facts.recorded:
        return
    for launch in {launch.kernel: launch for launch in facts.recorded[0].launches}.values():
        resources, name = facts.built.kernel(launch.kernel), function_name(launch.kernel)
        threads = math.prod(launch.block)
        bound = f"__launch_bounds__({math.prod(resources.max_ntid)})" if resources.max_ntid else "no __launch_bounds__"
        yield kept("launch.block", f"{name}: grid {_text(launch.grid)}, {threads} threads, {bound}")
        spills = resources.spill_store_bytes + resources.spill_load_bytes
        spilled = f", {spills} bytes spilled" if spills else ", nothing spilled"
        total = resources.registers * threads
        limit = facts.profile.registers_per_block
        yield kept("launch.registers", f"{name}: {threads} × {resources.registers} = {total:,} of {limit:,}{spilled}")
        if launch.cluster:
            yield kept("launch.cluster", f"{name}: clusters of {_text(launch.cluster)} in grid {_text(launch.grid)}")
        yield from _shared(facts, launch)
    for diagnostic in facts.built.diagnostics:
        if "setmaxnreg" in diagnostic.message:
            yield violated(
                "launch.registers",
                f"ptxas leaves setmaxnreg out: {name_functions(diagnostic.message)}",
                "Bound the threads: __launch_bounds__(threads, 1) on the kernel.",
                next((use.line for use in facts.uses("setmaxnreg")), None),
            )


def _shared(facts: Facts, launch: Launch) -> Iterator[Observation]:
    name = function_name(launch.kernel)
    used = facts.smem_bytes(launch.kernel, launch.dynamic_smem_bytes)
    if used:
        static = used - launch.dynamic_smem_bytes
        limit = facts.profile.smem_optin_bytes
        yield kept("smem.sum", f"{name}: {static:,} static + {launch.dynamic_smem_bytes:,} dynamic bytes of {limit:,}")


def check_bases(facts: Facts) -> Iterator[Observation]:
    """Does dynamic shared memory begin where the swizzles in use need it, by declaration or by rounding?

    The driver promises no more than 16 bytes; that a run met an aligned base proves nothing.
    """
    spans = [_SPAN[m.swizzle] for plan in facts.recorded for m in plan.tensor_maps if m.swizzle in _SPAN]
    if not spans:
        return
    period = 8 * max(spans)
    for kernel in facts.kernels:
        if "load" not in kernel.uses and "store" not in kernel.uses:
            continue
        name, declared = function_name(kernel.name), kernel.dynamic_alignment
        if not declared:
            continue
        if declared >= period:
            yield kept("smem.base", f"{name}: declared with alignment {declared}; swizzle needs {period}")
        elif any(kernel.rounds_to(aligned) for aligned in (period, 2 * period, 4 * period)):
            yield kept("smem.base", f"{name}: rounded in the kernel; swizzle needs {period}")
        else:
            yield unknown(
                "smem.base",
                f"{name}: the dynamic array is declared with alignment {declared}, and the swizzle needs {period}: no "
                "rounding was seen, and the driver promises 16 bytes only",
                f"Declare it `extern __shared__ __align__({period})`.",
            )


def box_bytes(tensor_map: TensorMap) -> int | None:
    """Return the bytes that one box of the map brings; None for packed types."""
    item = TYPE_BYTES.get(tensor_map.data_type)
    if item is None:
        return None
    steps = (1, *tensor_map.element_strides[1:]) if tensor_map.interleave == "NONE" else tensor_map.element_strides
    return item * math.prod(-(-box // step) for box, step in zip(tensor_map.box_dim, steps, strict=True))


def check_maps(facts: Facts) -> Iterator[Observation]:
    """Fields of the maps that were encoded (the recorder refuses bad ones as a driver does), and what they cover."""
    if not facts.recorded:
        return
    first = facts.recorded[0]
    for index, tensor_map in enumerate(first.tensor_maps):
        where, item = _where(tensor_map, index), TYPE_BYTES.get(tensor_map.data_type)
        row = "" if item is None else f", {tensor_map.box_dim[0] * item} bytes a row, {box_bytes(tensor_map):,} in all"
        yield kept("map.box", f"{where}: {_text(tensor_map.box_dim)}{row}")
        yield kept("map.swizzle", f"{where}: {tensor_map.swizzle}")
        steps = (
            "" if set(tensor_map.element_strides) == {1} else f", element strides {_text(tensor_map.element_strides)}"
        )
        yield kept("map.strides", f"{where}: {_text(tensor_map.global_strides_bytes) or '-'} bytes{steps}")
        yield kept("map.address", f"{where}: offset {tensor_map.global_address.offset}")
        yield kept("map.interleave", f"{where}: {tensor_map.data_type}, interleave {tensor_map.interleave}")
    yield from _extents(facts)


def _extents(facts: Facts) -> Iterator[Observation]:
    covers = [[_cover(plan, tensor_map) for tensor_map in plan.tensor_maps] for plan in facts.recorded]
    for plan, found in zip(facts.recorded, covers, strict=True):
        for index, (tensor_map, (last, elements, size)) in enumerate(zip(plan.tensor_maps, found, strict=True)):
            if last > size:
                yield violated(
                    "map.extent",
                    f"{_where(tensor_map, index)} at {_axes(plan)}: dims {_text(tensor_map.global_dim)} with strides "
                    f"{_text(tensor_map.global_strides_bytes)} bytes end {last - size:,} behind its {size:,}",
                    "Give globalDim the extents of this call, innermost first, and strides in bytes of whole rows.",
                )
            elif plan is facts.recorded[0]:
                share = f"{100 * elements / size:.0f} %" if size else "nothing"
                yield kept("map.extent", f"{_where(tensor_map, index)}: {_text(tensor_map.global_dim)}, {share} of it")
    if facts.recorded[0].tensor_maps and len(covers) < 2:
        yield unknown("map.extent", "only one of the two shapes could be recorded")
    if len(covers) == 2 and len(covers[0]) == len(covers[1]):
        for index, ((_, part, size), (_, other, whole)) in enumerate(zip(*covers, strict=True)):
            plan = facts.recorded[1]
            roles = {buffer.name: buffer.role for buffer in plan.buffers}
            given = roles[plan.tensor_maps[index].global_address.buffer] in ("input", "output")
            if given and size == part and other < whole:
                yield violated(
                    "map.extent",
                    f"{_where(plan.tensor_maps[index], index)} covers all of it at {_axes(facts.recorded[0])}, and "
                    f"{100 * other / whole:.0f} % at {_axes(plan)}: a size is written into the code",
                    "Take globalDim and strides from the arguments of `run`.",
                )


def _cover(plan: LaunchPlan, tensor_map: TensorMap) -> tuple[int, int, int]:
    """End of the map's last element in its buffer, bytes of all its elements, and bytes of the buffer."""
    item = TYPE_BYTES.get(tensor_map.data_type, 1)
    strides = (item, *tensor_map.global_strides_bytes)
    span = sum((dim - 1) * stride for dim, stride in zip(tensor_map.global_dim, strides, strict=True)) + item
    size = next(b.size_bytes for b in plan.buffers if b.name == tensor_map.global_address.buffer)
    return tensor_map.global_address.offset + span, item * math.prod(tensor_map.global_dim), size


def check_sizes(facts: Facts) -> Iterator[Observation]:
    """Does the plan change with the axes?"""
    if len(facts.recorded) < 2:
        failed = next((plan for plan in facts.plans if isinstance(plan, Failure)), None)
        if facts.recorded and failed is not None:
            yield violated("launch.sizes", f"one shape is recorded, the other fails: {name_functions(failed.message)}")
        return
    one, other = facts.recorded
    grids = f"grids {_grids(one)} at {_axes(one)}, {_grids(other)} at {_axes(other)}"
    if (one.operations, one.tensor_maps) == (other.operations, other.tensor_maps):
        yield violated(
            "launch.sizes",
            f"equal launches, parameters and maps at {_axes(one)} and at {_axes(other)}",
            "Pass the axes on to the kernels, and derive grid and maps from them.",
        )
    else:
        yield kept("launch.sizes", grids)


def _grids(plan: LaunchPlan) -> str:
    return " ".join(_text(launch.grid) for launch in plan.launches)


def _where(tensor_map: TensorMap, index: int) -> str:
    return f"map {index} of {tensor_map.global_address.buffer}"


def _axes(plan: LaunchPlan) -> str:
    return ", ".join(f"{name}={value}" for name, value in plan.axes.items())


def _text(values: tuple[int, ...]) -> str:
    return "×".join(map(str, values))
