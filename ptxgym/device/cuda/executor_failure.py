"""What an executor reports of a submission, as a `Failure`; what it reports of the machine, as an exception."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ptxgym.build.demangle import function_name
from ptxgym.errors import InfrastructureError
from ptxgym.plan.model import Copy, Dim3, Launch, LaunchPlan, Memset, Operation
from ptxgym.verdict import Failure, Stage, Status

_OUT_OF_MEMORY = 2
_OUT_OF_RESOURCES = 701
_ASSERT = 710
# CUresult of cuda.h 13.0: what a kernel does, with which the context ends.
_FAULTS: dict[int, tuple[str, str]] = {
    700: ("illegal_address", "accessed an address at which nothing of this call lies"),
    _ASSERT: ("assert", "failed an assertion"),
    714: ("hardware_stack_error", "corrupted the call stack, or used more of it than there is"),
    715: ("illegal_instruction", "executed an illegal instruction"),
    716: ("misaligned_address", "accessed an address that is no multiple of the access's size"),
    717: ("invalid_address_space", "accessed a state space with an address that lies in another"),
    718: ("invalid_pc", "jumped out of the program"),
    719: ("launch_failed", "broke off with an exception (a bad mbarrier, TMA or shared memory access, or a trap)"),
    721: ("tensor_memory_leak", "ended without freeing its tensor memory"),
}
# What the driver refuses before a kernel runs, and the way out.
_REFUSALS: dict[int, tuple[str, str]] = {
    1: ("invalid_value", "check grid, block, cluster and shared memory against the kernel's limits"),
    _OUT_OF_MEMORY: ("out_of_memory", "use less local memory (stack, spills) per thread, or fewer threads"),
    _OUT_OF_RESOURCES: ("launch_out_of_resources", "use fewer threads per block, fewer registers (`__launch_bounds__`)"
          " or less shared memory"),
    720: ("cooperative_launch_too_large", "launch no more blocks than fit on the GPU at once"),
    912: ("invalid_cluster_size", "use a cluster of at most 8 blocks, or allow the non-portable size"),
}  # fmt: skip
_MAX_NAMED = 4
_MAX_QUOTED = 300
_ASSERTION = re.compile(r"^(?:[^\s:]*/)?([^\s:/]+:\d+: .*Assertion .*failed.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Reported:
    """A driver call that failed in the executor."""

    stage: str
    """`start`, `load`, `residue`, `region`, `attribute`, `allocate`, `prepare`, `tensor_map`, `symbol`, `launch`,
    `run` or `collect`."""
    result: int
    """CUresult."""
    name: str
    call: str
    index: int
    """Of the kernel (`attribute`), buffer (`allocate`, `symbol`), tensor map or operation (`launch`); −1 for none."""
    printed: str = ""

    def __str__(self) -> str:
        return f"{self.call} returned {self.name} ({self.result}) in stage {self.stage!r}"


def ends_context(reported: Reported) -> bool:
    """Whether nothing works in the executor any more."""
    return reported.result in _FAULTS


def failure_of(reported: Reported, plan: LaunchPlan | None, kernels: Sequence[str]) -> Failure:
    """Return what a submission did wrong.

    Args:
        reported: What the executor said.
        plan: The plan that ran; None while loading.
        kernels: Names by index, as they were loaded.

    Raises:
        InfrastructureError: if the machine is to blame.
    """
    if plan is not None and reported.result in _FAULTS:
        return _fault(reported, plan)
    if plan is not None and reported.stage == "launch" and reported.index >= 0:
        return _refused(reported, plan.operations[reported.index])
    if plan is not None and reported.stage == "tensor_map":
        what = plan.tensor_maps[reported.index]
        return _launch_error(
            "tensor_map",
            f"The driver refuses the tensor map over {what.global_address.buffer} at byte "
            f"{what.global_address.offset} ({reported.name}): dims {what.global_dim}, strides "
            f"{what.global_strides_bytes} bytes, box {what.box_dim}, swizzle {what.swizzle}; check "
            "cuTensorMapEncodeTiled's rules on them.",
        )
    if plan is not None and reported.stage == "allocate" and reported.index >= 0:
        buffer = plan.buffers[reported.index]
        if buffer.role == "workspace" and reported.result == _OUT_OF_MEMORY:
            total = sum(b.size_bytes for b in plan.buffers if b.role == "workspace")
            return _launch_error(
                "out_of_memory",
                f"The GPU has no memory for {buffer.name} of {buffer.size_bytes:,} bytes; the workspaces of this call "
                f"come to {total:,} bytes. Allocate less.",
            )
    if reported.stage == "attribute":
        return _launch_error(
            "function_attribute",
            f"The driver refuses an attribute of kernel {function_name(kernels[reported.index])} ({reported.name}); "
            "check the dynamic shared memory, carve-out and cluster size that `run` asks for.",
        )
    if reported.stage == "load" and reported.result == _OUT_OF_MEMORY:
        return _launch_error(
            "out_of_memory", "The GPU has no memory for the variables of the module; declare less `__device__` memory."
        )
    if reported.stage == "residue" and reported.result in (_OUT_OF_MEMORY, _OUT_OF_RESOURCES):
        return _launch_error(
            "out_of_memory",
            "The GPU has no memory for the local memory (stack, spills) of all threads that it runs at once; use less "
            "per thread: smaller local arrays, no recursion, no `alloca`.",
        )
    raise _machine_failed(reported)


def overrun_failure(plan: LaunchPlan, index: int, before: bool, distance_bytes: int) -> Failure:
    """Return the failure of a call that wrote beside the buffer `index`."""
    buffer = plan.buffers[index]
    where = "before the start" if before else "past the end"
    unit = "byte" if distance_bytes == 1 else "bytes"
    message = (
        f"{_who(plan)} wrote {distance_bytes} {unit} {where} of {buffer.name}, which has {buffer.size_bytes:,} bytes; "
        "guard the accesses of edge tiles."
    )
    return Failure(stage=Stage.EXECUTE, status=Status.RUNTIME_FAULT, code="cuda.out_of_bounds", message=message)


def heap_failure() -> Failure:
    """Return the failure of a submission that keeps memory beyond a call."""
    return _launch_error(
        "device_malloc",
        "Kernels call malloc or new on the device, whose memory would outlive the call; let `run` allocate a workspace "
        "with cudaMallocAsync and pass its pointer.",
    )


def hang_failure(plan: LaunchPlan, timeout_s: float) -> Failure:
    """Return the failure of a call that did not end."""
    message = (
        f"{_who(plan)} did not end within {timeout_s:g} s; look for a barrier or mbarrier phase that never completes, "
        "or a loop without an end."
    )
    return Failure(stage=Stage.EXECUTE, status=Status.HANG, code="cuda.hang", message=message)


def _fault(reported: Reported, plan: LaunchPlan) -> Failure:
    code, did = _FAULTS[reported.result]
    message = f"{_who(plan)} {did} ({reported.name})."
    assertion = _ASSERTION.search(reported.printed)
    if reported.result == _ASSERT and assertion is not None:
        message += f" It said: {assertion.group(1)[:_MAX_QUOTED]}"
    return Failure(stage=Stage.EXECUTE, status=Status.RUNTIME_FAULT, code=f"cuda.{code}", message=message)


def _refused(reported: Reported, operation: Operation) -> Failure:
    if reported.result not in _REFUSALS:
        raise _machine_failed(reported)
    code, remedy = _REFUSALS[reported.result]
    if isinstance(operation, Launch):
        shape = f"grid {_dim(operation.grid)}, block {_dim(operation.block)}"
        if operation.cluster is not None:
            shape += f", cluster {_dim(operation.cluster)}"
        smem = f"{operation.dynamic_smem_bytes:,} bytes of dynamic shared memory"
        kind = "cooperative launch" if operation.cooperative else "launch"
        what = f"{kind} of {function_name(operation.kernel)} ({shape}, {smem})"
        return _launch_error(code, f"The driver refuses the {what}: {reported.name}; {remedy}.")
    size = operation.size_bytes if isinstance(operation, Copy) else 0
    if isinstance(operation, Memset):
        size = operation.count * operation.width_bytes
    target = f"{operation.target.buffer} at byte {operation.target.offset}"
    return _launch_error(
        code, f"The driver refuses the {operation.kind} to {target} ({size:,} bytes): {reported.name}."
    )


def _launch_error(code: str, message: str) -> Failure:
    return Failure(stage=Stage.EXECUTE, status=Status.LAUNCH_ERROR, code=f"cuda.{code}", message=message)


def _machine_failed(reported: Reported) -> InfrastructureError:
    return InfrastructureError(f"the executor cannot go on: {reported}")


def _who(plan: LaunchPlan) -> str:
    names = list(dict.fromkeys(function_name(launch.kernel) for launch in plan.launches))
    if len(names) == 1:
        launches = len(plan.launches)
        return f"Kernel {names[0]}" if launches == 1 else f"One of the {launches} launches of kernel {names[0]}"
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"One of the kernels {', '.join(names[:_MAX_NAMED])}{more}"


def _dim(dim: Dim3) -> str:
    return "×".join(map(str, dim))
