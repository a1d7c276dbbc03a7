"""The emulator as a device: plan and inputs in, `Execution` or `Failure` out."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ptxgym.build.demangle import name_functions
from ptxgym.build.model import Build
from ptxgym.cache import Cache
from ptxgym.device.emulator.findings import RECORD_DTYPE, KernelSource, findings_of, rank
from ptxgym.device.emulator.placement import HOST_ALIGNMENT_BYTES, aligned, place
from ptxgym.device.emulator.pool import Job, Pool, keep_reproducer
from ptxgym.device.emulator.tensor_map import pack, unsupported
from ptxgym.device.protocol import Bytes, Execution, InstructionCount, RunOptions
from ptxgym.device.sampling import PERIOD_STEP_BYTES, Sample, SampledLaunch, SampledUnit, Written, units_of
from ptxgym.errors import InfrastructureError, UsageError, WorkerDied
from ptxgym.plan.model import (
    Blob,
    Buffer,
    Copy,
    Launch,
    LaunchPlan,
    Memset,
    Operation,
    PointerRef,
    normalize_names,
)
from ptxgym.verdict import Failure, Finding, Stage, Status

_STATUS = {"runtime_fault": Status.RUNTIME_FAULT, "hang": Status.HANG, "budget": Status.BUDGET}
_NOT_EMULATED = frozenset({"emulator.swizzle", "tcgen05.zero_column_mask"})
"""What ends a kernel that did nothing wrong: operands, known only as it runs, that the emulator does not execute."""

# What one SM holds, and how many there are: CUDA C++ Programming Guide, compute capabilities 9.0 and 10.0; H100, B200.
_WARP_LANES = 32
_SM_COUNT = {"sm_90a": 132, "sm_100a": 148}
_SM_THREADS, _SM_REGISTERS, _SM_CTAS, _SM_SMEM_BYTES, _CTA_RESERVED_SMEM_BYTES = 2048, 65536, 32, 228 * 1024, 1024
_SM_PARTITIONS = 4


class EmulatorDevice:
    """Runs plans on the CPU, in worker processes that are started on demand and reused; safe to share among threads."""

    name = "emulator"

    def __init__(self, *, wall_limit_s: float = 1800.0, cache: Cache | None = None) -> None:
        """Create the device; nothing is started yet.

        Args:
            wall_limit_s: Wall time after which a run is given up as a failure of the machine; budgets bound
                submissions.
            cache: Where jobs that kill a worker are kept; the user's cache by default.
        """
        self._wall_limit_s = wall_limit_s
        self._cache = cache
        self._pool = Pool()

    def run(
        self, build: Build, plan: LaunchPlan, buffers: Mapping[str, Bytes], options: RunOptions = RunOptions()
    ) -> Execution | Failure:
        """Run `plan` on copies of `buffers`; see `protocol.Device.run`.

        Raises:
            UsageError: if `buffers` does not hold every input and output in its size.
            WorkerDied: if the core crashed; the message says where the reproducer lies.
            InfrastructureError: if the machine failed otherwise.
        """
        started = time.perf_counter()
        refused = _refusal(plan)
        if refused is not None:
            return refused
        job = _job(build, plan, options)
        exchanged = [(b, _offset) for b, _offset in _arena_layout(plan) if _offset is not None]
        with self._pool.worker() as worker:
            arena = worker.arena(job.arena_bytes)
            for buffer, offset in exchanged:
                arena[offset : offset + buffer.size_bytes] = _content(buffer, buffers)
            try:
                answer, blobs = worker.run(job, self._wall_limit_s)
            except WorkerDied as error:
                for buffer, offset in exchanged:  # the crash may have left anything there
                    arena[offset : offset + buffer.size_bytes] = _content(buffer, buffers)
                folder = keep_reproducer(self._cache or Cache(), job, arena)
                raise WorkerDied(f"{error}; the job is kept in {folder}") from error
            if answer["outcome"] == "error":
                raise InfrastructureError(f"the emulator failed on kernel source {build.source}:\n{answer['trace']}")
            after = {b.name: arena[offset : offset + b.size_bytes].copy() for b, offset in exchanged}
        if answer["outcome"] == "not_emulated":
            return Failure.model_validate(answer["failure"])
        findings = _findings(build, answer, blobs)
        if answer["outcome"] != "ok":
            return _failure(build, answer, blobs, findings, options)
        return Execution(
            buffers=after,
            counts=_counts(answer, blobs),
            findings=rank(findings, options.max_findings),
            tma_bytes=answer["tma_bytes"],
            warp_instructions=answer["warp_instructions"],
            printed=answer["printed"],
            wall_s=time.perf_counter() - started,
        )

    def sample(
        self,
        build: Build,
        plan: LaunchPlan,
        patterns: Mapping[str, Bytes],
        units: Sequence[Sequence[int]],
        budgets: Sequence[int],
        more: Sequence[Sequence[int]] = (),
    ) -> Sample | Failure:
        """Run a few CTAs of `plan`; see `sampling.Sampler.sample`.

        Raises:
            WorkerDied: if the core crashed.
            InfrastructureError: if the machine failed otherwise.
        """
        refused = _refusal(plan)
        if refused is not None:
            return refused
        job = _sample_job(build, plan, patterns, units, budgets, more)
        with self._pool.worker() as worker:
            arena = worker.arena(job.arena_bytes)
            for buffer in job.header["buffers"]:
                if buffer["role"] == "input":
                    arena[buffer["offset"] : buffer["offset"] + buffer["period"]] = patterns[buffer["name"]]
            answer, blobs = worker.run(job, self._wall_limit_s)
        if answer["outcome"] == "error":
            raise InfrastructureError(f"the emulator failed on kernel source {build.source}:\n{answer['trace']}")
        if answer["outcome"] == "not_emulated":
            return Failure.model_validate(answer["failure"])
        return _sampled(build, plan, answer, blobs)

    def close(self) -> None:
        """End the idle workers; they also end with this object and with the process."""
        self._pool.close()


def _refusal(plan: LaunchPlan) -> Failure | None:
    """What the plan asks for that the emulator does not do, by name."""

    def refuse(code: str, what: str) -> Failure:
        message = name_functions(normalize_names(f"The emulator does not execute {what}."))
        return Failure(stage=Stage.EXECUTE, status=Status.NOT_EMULATED, code=code, message=message)

    for tensor_map in plan.tensor_maps:
        if (what := unsupported(tensor_map)) is not None:
            return refuse("emulator.tensor_map", what)
    return None


def _content(buffer: Buffer, buffers: Mapping[str, Bytes]) -> Bytes:
    given = buffers.get(buffer.name)
    if given is None or given.nbytes != buffer.size_bytes:
        has = "is missing" if given is None else f"has {given.nbytes} bytes"
        raise UsageError(f"buffer {buffer.name} {has}; the plan has an {buffer.role} of {buffer.size_bytes} bytes")
    return np.ascontiguousarray(given).reshape(-1).view(np.uint8)


def _arena_layout(plan: LaunchPlan) -> list[tuple[Buffer, int | None]]:
    """Offsets in shared memory of what evaluator and worker exchange; None for what the worker keeps to itself."""
    layout: list[tuple[Buffer, int | None]] = []
    at = 0
    for buffer in plan.buffers:
        if buffer.role in ("input", "output"):
            layout.append((buffer, at))
            at = aligned(at + buffer.size_bytes, HOST_ALIGNMENT_BYTES)
        else:
            layout.append((buffer, None))
    return layout


def _job(build: Build, plan: LaunchPlan, options: RunOptions) -> Job:
    addresses = place((buffer.name, buffer.size_bytes) for buffer in plan.buffers)
    layout = _arena_layout(plan)
    blobs: list[bytes] = []

    early = overlapping(plan)

    def patched(blob: Blob) -> int:
        data = bytearray(blob.raw)
        for ref in blob.refs:
            if isinstance(ref, PointerRef):
                value = (addresses[ref.target.buffer] + ref.target.offset).to_bytes(8, "little")
            else:
                tensor_map = plan.tensor_maps[ref.index]
                base = tensor_map.global_address
                value = pack(tensor_map, addresses[base.buffer] + base.offset)
            data[ref.at : ref.at + len(value)] = value
        blobs.append(bytes(data))
        return len(blobs) - 1

    def described(operation: Operation) -> dict[str, Any]:
        if isinstance(operation, Launch):
            return {
                "kind": "launch", "kernel": operation.kernel, "grid": operation.grid, "block": operation.block,
                "dynamic_smem_bytes": operation.dynamic_smem_bytes, "params": [patched(p) for p in operation.params],
                "resident_ctas": _resident_ctas(build, operation), "cluster": operation.cluster,
                "registers": _registers(build, operation.kernel), "cooperative": operation.cooperative,
                "programmatic": any(operation is launch for launch in early),
            }  # fmt: skip
        target = (operation.target.buffer, operation.target.offset)
        moved: dict[str, Any] = {"kind": operation.kind, "target": target}
        if isinstance(operation, Memset):
            return moved | {"value": operation.value, "width_bytes": operation.width_bytes, "count": operation.count}
        if isinstance(operation, Copy):
            source = (operation.source.buffer, operation.source.offset)
            return moved | {"source": source, "size_bytes": operation.size_bytes}
        return moved | {"data": patched(operation.data)}

    header = {
        "module": {"key": build.key, "ptx": str(build.ptx), "source": str(build.source)},
        "buffers": [
            {"name": b.name, "role": b.role, "size": b.size_bytes, "address": addresses[b.name], "offset": offset}
            for b, offset in layout
        ],
        "operations": [described(operation) for operation in plan.operations],
        "options": {
            "schedule": options.schedule, "seed": options.seed,
            "threads": options.threads or len(os.sched_getaffinity(0)),
            "zero_target_results": options.zero_target_results,
            "warp_instruction_budget": options.warp_instruction_budget,
        },
    }  # fmt: skip
    arena_bytes = max((offset + b.size_bytes for b, offset in layout if offset is not None), default=0)
    return Job(header, tuple(blobs), arena_bytes)


def _sample_job(
    build: Build,
    plan: LaunchPlan,
    patterns: Mapping[str, Bytes],
    units: Sequence[Sequence[int]],
    budgets: Sequence[int],
    more: Sequence[Sequence[int]],
) -> Job:
    """Return the job whose inputs lie in the arena by the period, and whose other buffers are the worker's own."""
    job = _job(build, plan, RunOptions(threads=1))
    at = 0
    for buffer in job.header["buffers"]:
        buffer["offset"] = None
        if buffer["role"] == "input":
            buffer["offset"], buffer["period"] = at, patterns[buffer["name"]].nbytes
            at = aligned(at + buffer["period"], PERIOD_STEP_BYTES)
    further = [list(tried) for tried in more] if len(units) == 1 else []
    asked = [
        {"units": list(tried), "budget": budget, "more": further} for tried, budget in zip(units, budgets, strict=True)
    ]
    return Job({**job.header, "sample": asked}, job.blobs, at)


def _sampled(build: Build, plan: LaunchPlan, answer: Mapping[str, Any], blobs: list[bytes]) -> Sample:
    alone = len(plan.launches) == 1
    outputs = [buffer.name for buffer in plan.buffers if buffer.role == "output"] if alone else []
    left = iter(blobs)

    def unit(done: Mapping[str, Any], kernel: str) -> SampledUnit:
        found = np.frombuffer(next(left), RECORD_DTYPE)
        fatal = found[found["fatal"] != 0][:1]
        named = findings_of(fatal, _sources(build, answer)[kernel]) if len(fatal) else []
        written = {
            name: Written(np.frombuffer(next(left), np.int64), np.frombuffer(next(left), np.uint8)) for name in outputs
        }
        message = named[0].message if named else ""
        return SampledUnit(
            unit=done["unit"],
            end=done["end"],
            instead=done["instead"],
            message=message,
            stuck=bool(named) and named[0].code != "emulator.endless_loop",
            looked=done["looked"],
            loaded=done["loaded"],
            stored=done["stored"],
            warp_instructions=done["warp_instructions"],
            forms=frozenset(done["forms"]),
            elsewhere_bytes=done["elsewhere_bytes"],
            multiply_adds=done["multiply_adds"],
            outputs=written,
        )

    return Sample(
        tuple(
            SampledLaunch(
                done["kernel"],
                units_of(launch),
                done["ran"],
                done["idle"],
                done["blind"],
                tuple(unit(one, done["kernel"]) for one in done["worked"]),
            )
            for done, launch in zip(answer["launches"], plan.launches, strict=False)
        )
    )


def overlapping(plan: LaunchPlan) -> tuple[Launch, ...]:
    """Return the launches that may begin before the launch before them is over (programmatic dependent launch).

    Only what directly follows a launch in its own stream, and waits for no other stream, may do so.
    """
    found = []
    for before, operation in itertools.pairwise(plan.operations):
        if not isinstance(before, Launch) or not isinstance(operation, Launch):
            continue
        if operation.programmatic and before.stream == operation.stream and not operation.after:
            found.append(operation)
    return tuple(found)


def _registers(build: Build, kernel: str) -> int:
    """Registers that each thread of a kernel gets, in the hardware's steps of 8; 0 where `setmaxnreg` means nothing.

    ptxas leaves the instruction out of kernels without a bound on their registers, and says so.
    """
    if not build.kernels or any("setmaxnreg" in diagnostic.message for diagnostic in build.diagnostics):
        return 0
    return aligned(build.kernel(kernel).registers, 8)


def _resident_ctas(build: Build, launch: Launch) -> int:
    """CTAs of a launch that the task's GPU holds at a time; 0 (all) for a build that says nothing of its resources.

    Matters where CTAs wait for each other.
    """
    return resident_ctas_per_sm(build, launch) * _SM_COUNT.get(build.arch, 132) if build.kernels else 0


def resident_ctas_per_sm(build: Build, launch: Launch) -> int:
    """Return how many CTAs of a launch one SM holds at a time, at least 1."""
    resources = build.kernel(launch.kernel)
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    warps = (threads + 31) // 32
    smem_bytes = resources.static_smem_bytes + launch.dynamic_smem_bytes + _CTA_RESERVED_SMEM_BYTES
    # Each of the SM's partitions has registers for whole warps (cuda_occupancy.h).
    warp_registers = aligned(max(resources.registers, 1) * 32, 256)
    sm_warps = _SM_REGISTERS // _SM_PARTITIONS // warp_registers * _SM_PARTITIONS
    per_sm = min(_SM_CTAS, _SM_THREADS // (warps * 32), sm_warps // warps, _SM_SMEM_BYTES // smem_bytes)
    return max(1, per_sm)


def _sources(build: Build, answer: Mapping[str, Any]) -> dict[str, KernelSource]:
    text = build.source.read_text(encoding="utf-8", errors="replace")
    return {
        kernel["name"]: KernelSource(kernel["name"], kernel["lines"], text, [tuple(c) for c in kernel["chains"]])
        for kernel in answer["kernels"]
    }


def _findings(build: Build, answer: Mapping[str, Any], blobs: list[bytes]) -> list[Finding]:
    launches = answer["launches"]
    if not any(blobs[: len(launches)]):
        return []
    sources = _sources(build, answer)
    found: list[Finding] = []
    for launch, records in zip(launches, blobs, strict=False):
        found += findings_of(np.frombuffer(records, RECORD_DTYPE), sources[launch["kernel"]])
    return found


def _failure(
    build: Build, answer: Mapping[str, Any], blobs: list[bytes], findings: list[Finding], options: RunOptions
) -> Failure:
    status = _STATUS[answer["outcome"]]
    ranked = rank(findings, options.max_findings)
    if status is Status.BUDGET:
        message = (
            f"The kernels executed more than {options.warp_instruction_budget:,} warp instructions, the budget of this "
            f"workload; {answer['kernel']} was running{_busiest(answer)}."
        )
        code = "emulator.instruction_budget"
        return Failure(stage=Stage.EXECUTE, status=status, code=code, message=message, findings=ranked)
    last = np.frombuffer(blobs[len(answer["launches"]) - 1], RECORD_DTYPE)
    fatal = findings_of(last[last["fatal"] != 0][:1], _sources(build, answer)[answer["kernel"]])[0]
    if fatal.code in _NOT_EMULATED:  # says nothing against the kernel, as what is refused before it runs
        status = Status.NOT_EMULATED
        ranked = rank([finding for finding in findings if finding.code not in _NOT_EMULATED], options.max_findings)
    return Failure(stage=Stage.EXECUTE, status=status, code=fatal.code, message=fatal.message, findings=ranked)


def _kernel_counts(answer: Mapping[str, Any], blobs: list[bytes]) -> list[tuple[Mapping[str, Any], Any, Any, Any]]:
    arrays = [np.frombuffer(blob, np.uint64) for blob in blobs[len(answer["launches"]) :]]
    return list(zip(answer["kernels"], arrays[0::3], arrays[1::3], arrays[2::3], strict=True))


def _busiest(answer: Mapping[str, Any]) -> str:
    kernel = next(kernel for kernel in answer["kernels"] if kernel["name"] == answer["kernel"])
    line = kernel["lines"][answer["busiest"]] if answer["busiest"] >= 0 else 0
    return f", mostly at line {line}" if line else ""


def _counts(answer: Mapping[str, Any], blobs: list[bytes]) -> tuple[InstructionCount, ...]:
    found = []
    for kernel, warp, thread, at_run_time in _kernel_counts(answer, blobs):
        per_warp, per_thread = kernel["warp_multiply_adds"], kernel["thread_multiply_adds"]
        for index in np.flatnonzero(warp).tolist():
            warps, threads = int(warp[index]), int(thread[index])
            found.append(
                InstructionCount(
                    kernel=kernel["name"],
                    form=kernel["forms"][index],
                    family=kernel["families"][index],
                    line=kernel["lines"][index] or None,
                    site=next(iter(kernel["chains"][index]), None) if kernel["chains"] else None,
                    warp=warps,
                    thread=threads,
                    # A guard that is false is a warp execution too, but does no arithmetic.
                    multiply_adds=-(-threads // _WARP_LANES) * per_warp[index]
                    + threads * per_thread[index]
                    + int(at_run_time[index]),
                )
            )
    return tuple(found)
