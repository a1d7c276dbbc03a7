"""A submission's build and plans as the request that an executor loads: names resolved, order and set-up decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ptxgym.build.model import Build
from ptxgym.device.cuda.job_cubin import variables
from ptxgym.device.cuda.wire import Writer
from ptxgym.plan.model import (
    Blob,
    BufferRef,
    Copy,
    Dim3,
    FunctionAttributes,
    Launch,
    LaunchPlan,
    Memset,
    Operation,
    PointerRef,
    Ref,
    TensorMap,
    Upload,
)

_ROLES = ("input", "output", "workspace", "symbol")
_KINDS = ("launch", "memset", "copy", "upload")
_NO_CLUSTER: Dim3 = (0, 0, 0)


@dataclass(frozen=True)
class Order:
    """How one operation is replayed, beside what it does."""

    setup: bool
    """An upload that is over before the timed part begins."""
    after: tuple[int, ...]
    """Operations of other streams that it waits for."""
    programmatic: bool
    """A launch that may begin before the launch before it in its stream is over."""


def orders(operations: Sequence[Operation]) -> tuple[Order, ...]:
    """Decide how each operation of a plan is replayed.

    An upload is set-up where no launch comes before it and nothing before it touched its target. A launch is
    programmatic only behind a launch that directly precedes it in its stream, with no event between the two.
    """
    setup = _setup(operations)
    waits = _waits(operations, setup)
    awaited = {earlier for after in waits for earlier in after}
    last: dict[int, int] = {}
    found: list[Order] = []
    for index, (operation, after) in enumerate(zip(operations, waits, strict=True)):
        before = last.get(operation.stream)
        follows = before is not None and before not in awaited and isinstance(operations[before], Launch) and not after
        programmatic = isinstance(operation, Launch) and operation.programmatic and follows
        found.append(Order(setup[index], after, programmatic))
        if not setup[index]:
            last[operation.stream] = index
    return tuple(found)


def _waits(operations: Sequence[Operation], setup: Sequence[bool]) -> list[tuple[int, ...]]:
    """Waits between streams without set-up: what waited for a set-up upload waits for what that one waited for."""
    last: dict[int, int] = {}
    owed: dict[int, set[int]] = {}  # by stream: waits of uploads that no operation stands for yet
    behind: dict[int, set[int]] = {}  # by set-up upload: what would be over when it is
    found: list[tuple[int, ...]] = []
    for index, operation in enumerate(operations):
        stream = operation.stream
        waits = owed.pop(stream, set()).union(*(behind.get(earlier, {earlier}) for earlier in operation.after))
        if setup[index]:
            owed[stream] = waits
            behind[index] = waits | ({last[stream]} if stream in last else set())
        else:
            last[stream] = index
        found.append(tuple(sorted(earlier for earlier in waits if operations[earlier].stream != stream)))
    return found


def _setup(operations: Sequence[Operation]) -> list[bool]:
    touched: list[tuple[BufferRef, int]] = []
    launched = False
    found: list[bool] = []
    for operation in operations:
        if isinstance(operation, Launch):
            launched = True
            found.append(False)
            continue
        ranges = list(_ranges(operation))
        free = not any(_overlap(ranges[0], other) for other in touched)
        found.append(isinstance(operation, Upload) and not launched and free)
        if not found[-1]:
            touched += ranges
    return found


def _ranges(operation: Memset | Copy | Upload) -> Iterator[tuple[BufferRef, int]]:
    """The bytes that an operation writes, then those that it reads."""
    if isinstance(operation, Memset):
        yield operation.target, operation.count * operation.width_bytes
    elif isinstance(operation, Upload):
        yield operation.target, len(operation.data.data) // 2
    else:
        yield operation.target, operation.size_bytes
        yield operation.source, operation.size_bytes


def _overlap(one: tuple[BufferRef, int], two: tuple[BufferRef, int]) -> bool:
    (first, first_bytes), (second, second_bytes) = one, two
    within = first.offset < second.offset + second_bytes and second.offset < first.offset + first_bytes
    return first.buffer == second.buffer and within


def load_request(build: Build, plans: Sequence[LaunchPlan]) -> bytes:
    """Return the body of the LOAD request for `plans` of `build`."""
    cubin = build.cubin.read_bytes()
    kernels = kernel_names(plans)
    out = Writer().blob(cubin)
    out.numbers("I", max((build.kernel(kernel).stack_bytes for kernel in kernels), default=0))
    out.items(kernels, out.text)
    out.items(variables(cubin), lambda variable: out.text(variable.name).numbers("B", variable.zeros))
    numbers = {kernel: number for number, kernel in enumerate(kernels)}
    out.items(plans, lambda plan: _PlanWriter(out, build, plan, numbers).write())
    return out.body


def kernel_names(plans: Sequence[LaunchPlan]) -> tuple[str, ...]:
    """Return the mangled names of all kernels that `plans` launch or configure, each once."""
    names = (*(launch.kernel for plan in plans for launch in plan.launches),)
    return tuple(dict.fromkeys((*names, *(function.kernel for plan in plans for function in plan.functions))))


class _PlanWriter:
    def __init__(self, out: Writer, build: Build, plan: LaunchPlan, kernels: Mapping[str, int]) -> None:
        self._out = out
        self._build = build
        self._plan = plan
        self._kernels = kernels
        self._buffers = {buffer.name: number for number, buffer in enumerate(plan.buffers)}

    def write(self) -> None:
        out, plan = self._out, self._plan
        out.items(plan.buffers, lambda b: out.text(b.name).numbers("BQ", _ROLES.index(b.role), b.size_bytes))
        out.items(plan.tensor_maps, self._tensor_map)
        out.items(plan.functions, self._function)
        out.items(zip(plan.operations, orders(plan.operations), strict=True), self._operation)

    def _ref(self, ref: BufferRef) -> None:
        self._out.numbers("IQ", self._buffers[ref.buffer], ref.offset)

    def _tensor_map(self, tensor_map: TensorMap) -> None:
        out = self._out
        for text in (tensor_map.data_type, tensor_map.interleave, tensor_map.swizzle):
            out.text(text)
        out.text(tensor_map.l2_promotion).text(tensor_map.oob_fill)
        self._ref(tensor_map.global_address)
        for layout, values in (
            ("Q", tensor_map.global_dim),
            ("Q", tensor_map.global_strides_bytes),
            ("I", tensor_map.box_dim),
            ("I", tensor_map.element_strides),
        ):
            out.numbers(f"I{len(values)}{layout}", len(values), *values)

    def _function(self, function: FunctionAttributes) -> None:
        self._out.numbers(
            "IiiB", self._kernels[function.kernel], function.max_dynamic_smem_bytes, function.preferred_smem_carveout,
            function.non_portable_cluster,
        )  # fmt: skip

    def _operation(self, ordered: tuple[Operation, Order]) -> None:
        operation, order = ordered
        out = self._out.numbers("BBI", _KINDS.index(operation.kind), order.setup, operation.stream)
        out.numbers(f"I{len(order.after)}I", len(order.after), *order.after)
        if isinstance(operation, Launch):
            self._launch(operation, order)
            return
        self._ref(operation.target)
        if isinstance(operation, Memset):
            out.numbers("IIQ", operation.value, operation.width_bytes, operation.count)
        elif isinstance(operation, Copy):
            self._ref(operation.source)
            out.numbers("Q", operation.size_bytes)
        else:
            self._blob(operation.data)

    def _launch(self, launch: Launch, order: Order) -> None:
        compiled_in = self._build.kernel(launch.kernel).cluster is not None
        cluster = _NO_CLUSTER if compiled_in or launch.cluster is None else launch.cluster
        self._out.numbers("I9I", self._kernels[launch.kernel], *launch.grid, *launch.block, *cluster)
        self._out.numbers("IBB", launch.dynamic_smem_bytes, launch.cooperative, order.programmatic)
        self._out.items(launch.params, self._blob)

    def _blob(self, blob: Blob) -> None:
        self._out.blob(blob.raw)
        self._out.items(blob.refs, self._reference)

    def _reference(self, ref: Ref) -> None:
        if isinstance(ref, PointerRef):
            self._out.numbers("BI", 0, ref.at)
            self._ref(ref.target)
        else:
            self._out.numbers("BII", 1, ref.at, ref.index)
