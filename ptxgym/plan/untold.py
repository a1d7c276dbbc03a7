"""What is said of host code that fails at a hidden size: what kind of failure it is, in words of ours.

The message of a failure names what the host code asked for, printed or wrote into its own record: numbers, texts, file
names. Any of these can spell the sizes that it was called with. Its code, and the line where it was, stay: whoever
asks by them learns a few bits of a size.
"""

from __future__ import annotations

from ptxgym.verdict import Failure

_RECORD = "the record of the host code is malformed"
GENERAL = {
    "launch.arguments": "a launch does not pass what its kernel takes; check the array of arguments",
    "launch.block": "the block of a launch is empty, or larger than the GPU takes",
    "launch.bounds": "the block of a launch is not what the kernel was compiled for (__launch_bounds__, .reqntid)",
    "launch.cluster_conflict": "a launch asks for another cluster than its kernel was compiled for",
    "launch.cluster_grid": "the grid of a launch is no multiple of its cluster",
    "launch.cluster_size": "the cluster of a launch is larger than the GPU takes, or than the kernel allows",
    "launch.cooperative_too_large": "a cooperative launch has more CTAs than the GPU holds at once",
    "launch.function": "a launch names no kernel of this submission",
    "launch.grid": "the grid of a launch is empty, or larger than the GPU takes",
    "launch.registers": "the block of a launch takes more registers than an SM has",
    "launch.shared_memory": "a launch takes more shared memory than it may; cudaFuncSetAttribute allows more",
    "plan.bad_stream": "a call names a stream that does not exist; use the one that `run` was given, or create one",
    "plan.buffer_limit": "the host code allocates too many buffers of device memory",
    "plan.device_pointer_access": "host code read or wrote device memory; only kernels can reach it",
    "plan.device_to_host": "host code copies device memory to the host; a plan is recorded without data",
    "plan.host_abort": "host code aborted, or threw an exception out of `run`",
    "plan.host_exit": "host code ended the process before `run` returned",
    "plan.host_fault": "host code crashed: a bad address, a division by zero, a stack that overflowed",
    "plan.host_file": "host code may not use files; keep tables in the source",
    "plan.host_hang": "host code used all its CPU time without returning, or waits for ever; kernels do the work",
    "plan.host_memory": "host code ran out of host memory",
    "plan.host_network": "host code may not use the network",
    "plan.host_pointer": "a launch passes a pointer to host memory; kernels get device memory only",
    "plan.host_process": "host code runs on one thread, without new processes",
    "plan.host_syscall": "host code made a system call that it may not make",
    "plan.invalid": _RECORD,
    "plan.load_failed": "the host library does not load",
    "plan.no_entry": 'the submission exports no function `run` with C linkage; write extern "C" void run(...)',
    "plan.no_launch": "`run` returned without launching a kernel",
    "plan.not_deterministic": "two recordings differ: host code depends on addresses, time or randomness; compute "
    "everything from the arguments of `run`",
    "plan.not_device_memory": "a memset, copy, upload or tensor map is of something that is no device memory",
    "plan.operation_limit": "one call asks for too many launches, copies, tensor maps, streams or waits",
    "plan.partial_tensor_map": "a parameter or an upload holds a part of a tensor map, or one that was changed",
    "plan.pointer_out_of_bounds": "a pointer lies before or after its buffer",
    "plan.record_limit": "the host code asked for more operations and uploads than are recorded",
    "plan.reference_limit": "uploads hold too many pointers",
    "plan.refused_attribute": "host code sets an attribute of a function or a launch that is not supported",
    "plan.refused_call": "host code made a call that it may not make",
    "plan.tensor_map": "cuTensorMapEncodeTiled: the arguments break a rule of tensor maps (alignment, strides, box)",
    "plan.unjoined_stream": "an operation may still run when `stream` is done; join its stream by an event",
    "plan.unknown_kernel": "the host code registers a kernel that the build does not have",
    "plan.unordered_start": "an operation does not wait for what `stream` was given before `run`, or uses memory "
    "before its set-up is over; pass `stream`",
    "plan.unresolved_symbol": "the host code needs a function that is none of CUDA's runtime, C and C++",
    "plan.use_after_free": "a kernel or an upload gets a pointer to memory that was freed before",
    "plan.workspace_limit": "the host code allocates more device memory than a plan may",
}
"""By code, everything that the recorder and the stages after it may say but `plan.later_call`, which says no value."""
_HIDDEN = "numbers and texts are not told of a hidden size"


def untold(failed: Failure) -> Failure:
    """Return the failure without what host code could choose; a code that only a forged record has becomes ours."""
    code = failed.code if failed.code in GENERAL else "plan.invalid"
    return failed.model_copy(update={"code": code, "message": f"{GENERAL[code]} ({_HIDDEN})"})
