"""Is a plan sound? Asked outside the process that recorded it, of plans from files too: no plan is trusted."""

from __future__ import annotations

from collections.abc import Iterator

from ptxgym.build.model import MAX_MODULE_BYTES, Build, KernelResources
from ptxgym.plan.model import (
    MAX_EDGES,
    MAX_STREAMS,
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
    TensorMap,
    Upload,
)
from ptxgym.plan.module import module_of
from ptxgym.plan.profile import DeviceProfile

MAX_OPERATIONS = 20_000
MAX_TENSOR_MAPS = 4096
MAX_BUFFERS = 8192
MAX_WORKSPACE_BYTES = 4 << 30
"""Sum of all workspaces: replay gives each its own range."""
MAX_UPLOAD_BYTES = 16 << 20
"""Sum of all uploads."""
TENSOR_MAP_BYTES = 128

_GRID_LIMIT: Dim3 = (2**31 - 1, 65535, 65535)
_BLOCK_LIMIT: Dim3 = (1024, 1024, 64)
_DATA_TYPES = frozenset(
    (
        *("UINT8", "UINT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT16", "FLOAT32", "FLOAT64", "BFLOAT16"),
        *("FLOAT32_FTZ", "TFLOAT32", "TFLOAT32_FTZ", "16U4_ALIGN8B", "16U4_ALIGN16B", "16U6_ALIGN16B"),
    )
)
_SWIZZLES = frozenset(("NONE", "32B", "64B", "128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B"))
_INTERLEAVES = frozenset(("NONE", "16B", "32B"))
_PROMOTIONS = frozenset(("NONE", "L2_64B", "L2_128B", "L2_256B"))
_FILLS = frozenset(("NONE", "NAN_REQUEST_ZERO_FMA"))


def problems(plan: LaunchPlan, build: Build, profile: DeviceProfile, *, calls: int = 1) -> Iterator[str]:
    """Yield what is wrong with `plan` as a plan of `build`, each as a sentence; nothing if it can be replayed.

    Limits are those of a call; a plan of several `calls` may have so many times as much.
    """
    return _Checker(plan, build, profile, calls).problems()


class _Checker:
    def __init__(self, plan: LaunchPlan, build: Build, profile: DeviceProfile, calls: int) -> None:
        self._plan, self._build, self._profile, self._calls = plan, build, profile, calls
        self._sizes = {buffer.name: buffer.size_bytes for buffer in plan.buffers}
        self._kernels = {kernel.name: kernel for kernel in build.kernels}
        self._non_portable = {function.kernel for function in plan.functions if function.non_portable_cluster}

    def problems(self) -> Iterator[str]:
        plan = self._plan
        if plan.build_key != self._build.key:
            yield f"the plan belongs to build {plan.build_key}, not {self._build.key}"
        if plan.device_profile != self._profile.key:
            yield f"the plan was recorded for {plan.device_profile}, not {self._profile.key}"
        yield from self._limits()
        yield from self._buffers()
        for index, tensor_map in enumerate(plan.tensor_maps):
            yield from self._tensor_map(tensor_map, f"tensor map {index}")
        for function in plan.functions:
            yield from self._function(function)
        for index, operation in enumerate(plan.operations):
            where = f"operation {index}"
            match operation:
                case Launch():
                    yield from self._launch(operation, f"{where} (launch of {operation.kernel})")
                case Memset():
                    yield from self._memset(operation, f"{where} (memset)")
                case Copy():
                    yield from self._copy(operation, f"{where} (copy)")
                case Upload():
                    yield from self._upload(operation, f"{where} (upload)")
            yield from self._order(operation, index, where)

    def _order(self, operation: Operation, index: int, where: str) -> Iterator[str]:
        if not 0 <= operation.stream < MAX_STREAMS:
            yield f"{where} is on stream {operation.stream}"
        if list(operation.after) != sorted(set(operation.after)):
            yield f"{where} comes after {operation.after}, which does not ascend"
        for earlier in operation.after:
            if not 0 <= earlier < index:
                yield f"{where} comes after operation {earlier}, which is not before it"
            elif self._plan.operations[earlier].stream == operation.stream:
                yield f"{where} comes after operation {earlier} of its own stream, which goes without saying"

    def _limits(self) -> Iterator[str]:
        plan = self._plan
        workspace = sum(b.size_bytes for b in plan.buffers if b.role == "workspace")
        uploads = sum(len(op.data.data) // 2 for op in plan.operations if isinstance(op, Upload))
        for number, what, most in (
            (len(plan.operations), "operations", MAX_OPERATIONS),
            (sum(len(operation.after) for operation in plan.operations), "waits between streams", MAX_EDGES),
            (len(plan.tensor_maps), "tensor maps", MAX_TENSOR_MAPS),
            (len(plan.buffers), "buffers", MAX_BUFFERS),
            (workspace, "bytes of workspace", MAX_WORKSPACE_BYTES),
            (uploads, "bytes of uploads", MAX_UPLOAD_BYTES),
        ):
            if number > most * self._calls:
                yield f"{number} {what}, more than {most * self._calls}"
        variables = sum(module_of(self._build).variables.values())
        if variables > MAX_MODULE_BYTES:
            yield f"{variables} bytes of module variables, more than {MAX_MODULE_BYTES}"

    def _buffers(self) -> Iterator[str]:
        if len(self._sizes) != len(self._plan.buffers):
            yield "two buffers share a name"
        variables = module_of(self._build).variables
        for buffer in self._plan.buffers:
            if buffer.size_bytes < 0:
                yield f"buffer {buffer.name} has {buffer.size_bytes} bytes"
            if buffer.role == "symbol" and variables.get(buffer.name) != buffer.size_bytes:
                yield f"variable {buffer.name} of {buffer.size_bytes} bytes is not in the PTX with that size"

    def _function(self, function: FunctionAttributes) -> Iterator[str]:
        if function.kernel not in self._kernels:
            yield f"attributes of kernel {function.kernel}, which the build does not have"
        if not 0 <= function.max_dynamic_smem_bytes <= self._profile.smem_optin_bytes:
            yield f"{function.max_dynamic_smem_bytes} bytes of shared memory allowed to kernel {function.kernel}"
        if not -1 <= function.preferred_smem_carveout <= 100:
            yield f"a carve-out of {function.preferred_smem_carveout} % for kernel {function.kernel}"

    def _range(self, ref: BufferRef, size_bytes: int, where: str) -> Iterator[str]:
        size = self._sizes.get(ref.buffer)
        if size is None:
            yield f"{where} refers to buffer {ref.buffer}, which the plan does not have"
        elif ref.offset < 0 or size_bytes < 0 or ref.offset + size_bytes > size:
            yield f"{where} covers {size_bytes} bytes at offset {ref.offset} of {ref.buffer}, which has {size} bytes"

    def _tensor_map(self, tensor_map: TensorMap, where: str) -> Iterator[str]:
        yield from self._range(tensor_map.global_address, 0, where)
        rank = len(tensor_map.global_dim)
        if not 1 <= rank <= 5:
            yield f"{where} has rank {rank}"
        lengths = (len(tensor_map.global_strides_bytes) + 1, len(tensor_map.box_dim), len(tensor_map.element_strides))
        if lengths != (rank, rank, rank):
            yield f"{where} has rank {rank}, but strides, box and element strides for ranks {lengths}"
        for name, value, known in (
            ("data type", tensor_map.data_type, _DATA_TYPES),
            ("swizzle", tensor_map.swizzle, _SWIZZLES),
            ("interleave", tensor_map.interleave, _INTERLEAVES),
            ("L2 promotion", tensor_map.l2_promotion, _PROMOTIONS),
            ("fill", tensor_map.oob_fill, _FILLS),
        ):
            if value not in known:
                yield f"{where} has {name} {value!r}"
        if not all(1 <= n <= 1 << 32 for n in tensor_map.global_dim):
            yield f"{where} has globalDim {tensor_map.global_dim}"
        if not all(0 <= n < 1 << 40 and n % 16 == 0 for n in tensor_map.global_strides_bytes):
            yield f"{where} has globalStrides {tensor_map.global_strides_bytes}"
        if not all(1 <= n <= 256 for n in tensor_map.box_dim):
            yield f"{where} has boxDim {tensor_map.box_dim}"
        if not all(1 <= n <= 8 for n in tensor_map.element_strides):
            yield f"{where} has elementStrides {tensor_map.element_strides}"

    def _launch(self, launch: Launch, where: str) -> Iterator[str]:
        kernel = self._kernels.get(launch.kernel)
        if kernel is None:
            yield f"{where}: the build has no such kernel"
            return
        yield from self._shape(launch, kernel, where)
        sizes = tuple(len(blob.data) // 2 for blob in launch.params)
        if sizes != kernel.param_bytes:
            yield f"{where}: parameters of {sizes} bytes; the kernel takes {kernel.param_bytes}"
        for index, blob in enumerate(launch.params):
            yield from self._blob(blob, f"parameter {index} of {where}")

    def _shape(self, launch: Launch, kernel: KernelResources, where: str) -> Iterator[str]:
        for name, value, limit in (("grid", launch.grid, _GRID_LIMIT), ("block", launch.block, _BLOCK_LIMIT)):
            if not all(1 <= n <= most for n, most in zip(value, limit, strict=True)):
                yield f"{where}: {name} {value}"
        threads = _volume(launch.block)
        if threads > 1024 or (kernel.max_ntid and threads > _volume(kernel.max_ntid)):
            yield f"{where}: {threads} threads"
        if kernel.req_ntid and launch.block != kernel.req_ntid:
            yield f"{where}: block {launch.block} is not the required {kernel.req_ntid}"
        smem = launch.dynamic_smem_bytes + kernel.static_smem_bytes
        if launch.dynamic_smem_bytes < 0 or smem > self._profile.smem_optin_bytes:
            yield f"{where}: {smem} bytes of shared memory"
        if kernel.cluster and launch.cluster != kernel.cluster:
            yield f"{where}: cluster {launch.cluster} is not the compile-time {kernel.cluster}"
        if launch.cluster and not (
            min(launch.cluster) >= 1
            and _volume(launch.cluster) <= self._profile.max_cluster
            and all(g % c == 0 for g, c in zip(launch.grid, launch.cluster, strict=True))
        ):
            yield f"{where}: cluster {launch.cluster} with grid {launch.grid}"
        ctas = _volume(launch.cluster or (1, 1, 1))
        if ctas > (kernel.max_cluster_rank or ctas):
            yield f"{where}: cluster {launch.cluster} of a kernel for at most {kernel.max_cluster_rank}"
        if ctas > self._profile.portable_cluster and launch.kernel not in self._non_portable:
            yield f"{where}: cluster {launch.cluster} of a kernel that was not allowed more than the portable size"

    def _memset(self, memset: Memset, where: str) -> Iterator[str]:
        if memset.width_bytes not in (1, 2, 4) or not 0 <= memset.value < 1 << (8 * memset.width_bytes):
            yield f"{where}: value {memset.value} of {memset.width_bytes} bytes"
        if memset.count < 1 or memset.target.offset % max(memset.width_bytes, 1):
            yield f"{where}: {memset.count} elements at offset {memset.target.offset}"
        yield from self._range(memset.target, memset.count * memset.width_bytes, where)

    def _copy(self, copy: Copy, where: str) -> Iterator[str]:
        yield from self._range(copy.target, copy.size_bytes, where)
        yield from self._range(copy.source, copy.size_bytes, where)

    def _upload(self, upload: Upload, where: str) -> Iterator[str]:
        yield from self._range(upload.target, len(upload.data.data) // 2, where)
        yield from self._blob(upload.data, where)
        for ref in upload.data.refs:
            # PTX ISA 5.5.8: a tensor map lies at an address that is a multiple of 64 (and buffers at more).
            if not isinstance(ref, PointerRef) and (upload.target.offset + ref.at) % 64:
                yield f"{where} puts a tensor map at offset {upload.target.offset + ref.at}, no multiple of 64"

    def _blob(self, blob: Blob, where: str) -> Iterator[str]:
        try:
            size = len(blob.raw)
        except ValueError:
            yield f"{where}: its bytes are not hexadecimal"
            return
        if 2 * size != len(blob.data):  # `fromhex` skips white space
            yield f"{where}: its bytes are not hexadecimal"
        end = 0
        for ref in blob.refs:
            ref_bytes = 8 if isinstance(ref, PointerRef) else TENSOR_MAP_BYTES
            if ref.at < end or ref.at + ref_bytes > size:
                yield f"{where}: a reference at byte {ref.at} overlaps another or the end"
            end = ref.at + ref_bytes
            if isinstance(ref, PointerRef):
                yield from self._range(ref.target, 0, f"the pointer at byte {ref.at} of {where}")
            elif not 0 <= ref.index < len(self._plan.tensor_maps):
                yield f"{where}: there is no tensor map {ref.index}"


def _volume(dim: Dim3) -> int:
    return dim[0] * dim[1] * dim[2]
