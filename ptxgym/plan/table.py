"""A plan as text: buffers, tensor maps and operations, the same in every build of the same submission."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgym.build.demangle import demangle
from ptxgym.plan.model import (
    Blob,
    BufferRef,
    Copy,
    Dim3,
    Launch,
    LaunchPlan,
    Memset,
    Operation,
    PointerRef,
    Ref,
    TensorMap,
    Upload,
    normalize_names,
)

_SHOWN_PARAM_BYTES = 16
_NAME_WIDTH = 100


def plan_table(plan: LaunchPlan) -> str:
    """Return `plan` as text of a few lines per buffer, tensor map and operation; no addresses, deterministic."""
    axes = " ".join(f"{name}={value}" for name, value in plan.axes.items())
    count = f"{len(plan.operations)} operation{'s' if len(plan.operations) != 1 else ''}"
    parts = [f"plan of {count} on {plan.device_profile}, {axes}".rstrip(", ")]
    buffers = [(_short(b.name), b.role, f"{b.size_bytes:,} B") for b in plan.buffers]
    parts += ["", *_aligned(("buffer", "role", "size"), buffers)]
    if plan.tensor_maps:
        maps = [(f"map{i}", *_tensor_map(tensor_map)) for i, tensor_map in enumerate(plan.tensor_maps)]
        columns = ("map", "type", "address", "dims", "strides B", "box", "swizzle", "other")
        parts += ["", *_aligned(columns, maps)]
    parts += ["", *_operations(plan.operations)]
    for function in plan.functions:
        carveout = function.preferred_smem_carveout
        said = [f"max dynamic shared memory {function.max_dynamic_smem_bytes:,} B"]
        said += [f"carve-out {carveout} %"] if carveout >= 0 else []
        said += ["non-portable clusters"] if function.non_portable_cluster else []
        parts.append(f"{_kernel(function.kernel)}: {', '.join(said)}")
    parts += [f"kept between calls: {', '.join(map(_short, plan.kept))}"] if plan.kept else []
    parts += [f"failed: {call}" for call in plan.failed_calls]
    parts += [f"ignored: {call}" for call in plan.ignored_calls]
    return "\n".join(parts) + "\n"


def _tensor_map(m: TensorMap) -> tuple[str, ...]:
    other = []
    if any(step != 1 for step in m.element_strides):
        other.append(f"element strides {_shape(m.element_strides)}")
    if m.interleave != "NONE":
        other.append(f"interleave {m.interleave}")
    if m.l2_promotion != "NONE":
        other.append(m.l2_promotion)
    if m.oob_fill != "NONE":
        other.append("NaN fill")
    return (
        m.data_type,
        _address(m.global_address),
        _shape(m.global_dim),
        _shape(m.global_strides_bytes) or "-",
        _shape(m.box_dim),
        m.swizzle,
        ", ".join(other) or "-",
    )


def _operations(operations: Sequence[Operation]) -> list[str]:
    """One line each; which wait for operations of other streams is shown where there are any."""
    columns: tuple[str, ...] = ("#", "stream", "operation", "where", "what")
    rows: list[tuple[str, ...]] = [(str(index), *_operation(operation)) for index, operation in enumerate(operations)]
    if any(operation.after for operation in operations):
        columns = (*columns[:2], "after", *columns[2:])
        edges = (" ".join(map(str, operation.after)) or "-" for operation in operations)
        rows = [(*row[:2], edge, *row[2:]) for row, edge in zip(rows, edges, strict=True)]
    return _aligned(columns, rows)


def _operation(operation: Operation) -> tuple[str, str, str, str]:
    stream = str(operation.stream)
    match operation:
        case Launch():
            return stream, f"launch {_kernel(operation.kernel)}", _configuration(operation), _params(operation)
        case Memset():
            bits = 8 * operation.width_bytes
            return stream, "memset", _address(operation.target), f"{operation.count:,} x u{bits} {operation.value:#x}"
        case Copy():
            what = f"{operation.size_bytes:,} B from {_address(operation.source)}"
            return stream, "copy", _address(operation.target), what
        case Upload():
            size = len(operation.data.data) // 2
            refs = "".join(f", {_ref(ref)} at {ref.at}" for ref in operation.data.refs[:4])
            more = ", ..." if len(operation.data.refs) > 4 else ""
            return stream, "upload", _address(operation.target), f"{size:,} B{refs}{more}"


def _configuration(launch: Launch) -> str:
    words = [f"grid {_dim3(launch.grid)} block {_dim3(launch.block)} smem {launch.dynamic_smem_bytes:,} B"]
    if launch.cluster:
        words.append(f"cluster {_dim3(launch.cluster)}")
    words += ["cooperative"] if launch.cooperative else []
    words += ["programmatic"] if launch.programmatic else []
    return " ".join(words)


def _params(launch: Launch) -> str:
    return ", ".join(_param(blob) for blob in launch.params) or "no parameters"


def _param(blob: Blob) -> str:
    size = len(blob.data) // 2
    if len(blob.refs) == 1 and size == (8 if isinstance(blob.refs[0], PointerRef) else 128):
        return _ref(blob.refs[0])
    if not blob.refs and size in (1, 2, 4, 8):
        return str(int.from_bytes(blob.raw, "little", signed=True))
    if not blob.refs and size <= _SHOWN_PARAM_BYTES:
        return blob.data
    refs = " ".join(f"{ref.at}:{_ref(ref)}" for ref in blob.refs)
    return f"{{{size} B{' ' if refs else ''}{refs}}}"


def _ref(ref: Ref) -> str:
    return _address(ref.target) if isinstance(ref, PointerRef) else f"map{ref.index}"


def _address(ref: BufferRef) -> str:
    return _short(ref.buffer) + (f"+{ref.offset}" if ref.offset else "")


def _shape(values: Sequence[int]) -> str:
    return "x".join(map(str, values))


def _dim3(dim: Dim3) -> str:
    kept = 3 if dim[2] != 1 else 2 if dim[1] != 1 else 1
    return _shape(dim[:kept])


def _kernel(mangled: str) -> str:
    """The qualified name with its template arguments, without result and parameter types."""
    name = demangle(mangled).replace("(anonymous namespace)", "{anonymous}")
    depth, end = 0, len(name)
    for i, char in enumerate(name):
        depth += (char == "<") - (char == ">")
        if char == "(" and depth == 0:
            end = i
            break
    return _short(name[:end].removeprefix("void "))


def _short(name: str) -> str:
    name = normalize_names(name)
    return name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 3] + "..."


def _aligned(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lay out rows in columns; the last column is not padded."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in (header, *rows)
    ]
