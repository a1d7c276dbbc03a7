"""What a worker does with one job: place memory, decode, execute the plan's operations in order.

A job is plain data (`device.py` makes it): buffers at addresses, operations with references already patched in. The
answer is plain data too; the evaluator's side turns it into findings and counts.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ptxgym.device.emulator.core import Bytes, Core, LaunchOutcome, LaunchShape, Outcome, PlacedBuffer, Program
from ptxgym.device.emulator.decode import DecodedModule
from ptxgym.device.emulator.decode_grammar import NotEmulated
from ptxgym.device.emulator.ir import DecodedKernel, ModuleSymbol
from ptxgym.device.emulator.placement import after, zeros
from ptxgym.device.emulator.places import call_chains
from ptxgym.device.emulator.ptx import PtxSyntaxError

POISON = 0xFF
"""Every float format reads it as NaN."""
_MODULES = 8
_PRINT_LIMIT_BYTES = 64 * 1024
OUTCOME_NAMES = {
    Outcome.OK: "ok", Outcome.RUNTIME_FAULT: "runtime_fault", Outcome.HANG: "hang", Outcome.BUDGET: "budget",
}  # fmt: skip


@dataclass
class LoadedModule:
    """A module that this worker has decoded, with its programs."""

    module: DecodedModule
    programs: dict[str, Program] = field(default_factory=dict)
    chains: dict[str, list[list[int]]] = field(default_factory=dict)


class Memory:
    """The device memory of one job: buffers in ascending order of addresses, then the variables of the module."""

    def __init__(self, placed: Sequence[PlacedBuffer], symbols: Mapping[str, ModuleSymbol]) -> None:
        self.buffers = {buffer.name: buffer for buffer in placed}
        end = after(placed[-1].address, placed[-1].data.size) if placed else 0
        for name, symbol in symbols.items():
            known = self.buffers.get(name)
            address, size = (known.address, known.data.size) if known else (end, symbol.size_bytes)
            data = zeros(max(size, 1))
            self.buffers[name] = PlacedBuffer(name, address, data, read_only=symbol.space == "const")
            end = max(end, after(address, size))
        self.addresses = {name: buffer.address for name, buffer in self.buffers.items()}
        for name, symbol in symbols.items():
            self._initialise(self.buffers[name].data, symbol)
        self.ascending = sorted(self.buffers.values(), key=lambda buffer: buffer.address)

    def stamp(self) -> None:
        """Keep from now on what launches do with every byte, since some of them may overlap."""
        self.ascending = [replace(buffer, stamps=zeros(buffer.data.size)) for buffer in self.ascending]

    def overlap(self, keep: bool) -> None:
        """What the last launch did is now what the launch before did; with `keep`, beside what that one has not waited
        for.
        """
        for buffer in self.ascending:
            if buffer.stamps is not None:
                older = buffer.stamps & 0xF0 if keep else 0
                buffer.stamps[:] = (buffer.stamps << 4) | older

    def settle(self) -> None:
        """Everything before is over."""
        for buffer in self.ascending:
            if buffer.stamps is not None:
                buffer.stamps[:] = 0

    def _initialise(self, data: Bytes, symbol: ModuleSymbol) -> None:
        initial = np.frombuffer(symbol.initial, np.uint8)[: data.size]
        data[: initial.size] = initial
        for relocation in symbol.relocations:
            value = (self.addresses[relocation.symbol] + relocation.addend) & 0xFFFFFFFFFFFFFFFF
            data[relocation.offset : relocation.offset + 8] = np.frombuffer(value.to_bytes(8, "little"), np.uint8)

    def target(self, name: str, offset: int, size: int) -> Bytes:
        """Return bytes [offset, offset + size) of a buffer for writing, and mark them as written."""
        buffer = self._range(name, offset, size)
        if buffer.initialised is not None:
            buffer.initialised[offset : offset + size] = 1
        return buffer.data[offset : offset + size]

    def copy(self, target: tuple[str, int], source: tuple[str, int], size: int) -> None:
        """Copy between buffers; bytes that nothing has written stay unwritten in the copy."""
        origin = self._range(*source, size)
        data = origin.data[source[1] : source[1] + size].copy()
        written = None if origin.initialised is None else origin.initialised[source[1] : source[1] + size].copy()
        self.target(*target, size)[:] = data
        marks = self.buffers[target[0]].initialised
        if marks is not None and written is not None:
            marks[target[1] : target[1] + size] = written

    def _range(self, name: str, offset: int, size: int) -> PlacedBuffer:
        buffer = self.buffers[name]
        if offset < 0 or size < 0 or offset + size > buffer.data.size:
            raise ValueError(f"bytes [{offset}, {offset + size}) are not inside {name} of {buffer.data.size} bytes")
        return buffer


class Session:
    """Everything that a worker keeps between jobs."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._modules: OrderedDict[str, LoadedModule] = OrderedDict()

    def run(self, job: Mapping[str, Any], blobs: Sequence[bytes], arena: Bytes) -> tuple[dict[str, Any], list[bytes]]:
        """Run one job; `arena` holds inputs and outputs at the offsets that the job names."""
        loaded, refused = self.prepared(job)
        if loaded is None:
            return refused, []
        memory = Memory([placed(item, arena) for item in job["buffers"]], loaded.module.symbols)
        for name in launched_kernels(job):
            loaded.programs[name].relocate(memory.addresses)
        return _execute(job, blobs, memory, loaded)

    def prepared(self, job: Mapping[str, Any]) -> tuple[LoadedModule | None, dict[str, Any]]:
        """Decode the kernels that a job launches; where one cannot be, return the answer that says so instead."""
        launched = launched_kernels(job)
        try:
            loaded = self._module(job["module"])
            for name in launched:
                if name not in loaded.programs:
                    loaded.programs[name] = self._core.load(loaded.module.kernel(name))
            _ = loaded.module.symbols
        except (NotEmulated, PtxSyntaxError) as error:
            return None, _refused(job, launched, error)
        return loaded, {}

    def _module(self, described: Mapping[str, str]) -> LoadedModule:
        key = described["key"]
        if key in self._modules:
            self._modules.move_to_end(key)
            return self._modules[key]
        text = Path(described["ptx"]).read_text(encoding="utf-8")
        loaded = LoadedModule(DecodedModule.parse(text, described["source"]))
        self._modules[key] = loaded
        while len(self._modules) > _MODULES:
            self._modules.popitem(last=False)
        return loaded


def launched_kernels(job: Mapping[str, Any]) -> list[str]:
    """Return the kernels that a job launches, each once."""
    return list(dict.fromkeys(op["kernel"] for op in job["operations"] if op["kind"] == "launch"))


def placed(item: Mapping[str, Any], arena: Bytes) -> PlacedBuffer:
    """Return a buffer as a job describes it: in the arena, or poisoned memory of the worker's own."""
    name, size, role, offset = item["name"], item["size"], item["role"], item["offset"]
    data = arena[offset : offset + size] if offset is not None else zeros(size)
    if offset is None:
        data[:] = POISON
    written = zeros(size) if role in ("output", "workspace") else None
    return PlacedBuffer(name, item["address"], data, written, is_input=role == "input")


def _refused(job: Mapping[str, Any], launched: Sequence[str], error: Exception) -> dict[str, Any]:
    from ptxgym.device.emulator.forms import decode_kernels, refusal  # needs pydantic, which a good job does not

    if isinstance(error, PtxSyntaxError):
        failure = refusal(launched[0] if launched else "?", error)
    else:
        module = DecodedModule.parse(Path(job["module"]["ptx"]).read_text(encoding="utf-8"), job["module"]["source"])
        answer = decode_kernels(module, tuple(launched))
        failure = refusal(launched[0], error) if isinstance(answer, dict) and isinstance(error, NotEmulated) else answer  # type: ignore[assignment]
    return {"outcome": "not_emulated", "failure": failure.model_dump(mode="json")}


def _execute(
    job: Mapping[str, Any], blobs: Sequence[bytes], memory: Memory, loaded: LoadedModule
) -> tuple[dict[str, Any], list[bytes]]:
    options = job["options"]
    left = int(options["warp_instruction_budget"])
    counts: dict[str, tuple[Any, ...]] = {}
    answer: dict[str, Any] = {"outcome": "ok", "launches": [], "printed": "", "tma_bytes": 0, "warp_instructions": 0}
    records: list[bytes] = []
    if any(operation.get("programmatic") for operation in job["operations"]):
        memory.stamp()
    unwaited = False  # the last launch may have begun early, and never waited for the one before it
    for operation in job["operations"]:
        if operation["kind"] != "launch":
            move(operation, blobs, memory)
            memory.settle()
            continue
        program = loaded.programs[operation["kernel"]]
        if operation["programmatic"]:
            memory.overlap(unwaited)
        else:
            memory.settle()
        parameters = parameters_of(program, operation, blobs)
        result = program.launch(launch_shape(operation, options, left), memory.ascending, parameters)
        left = max(0, left - result.warp_instructions)
        unwaited = operation["programmatic"] and not _executed(program, result, "griddepcontrol.wait")
        _add(answer, counts, records, operation["kernel"], result)
        if result.outcome is not Outcome.OK:
            answer["outcome"] = OUTCOME_NAMES[result.outcome]
            answer["kernel"], answer["busiest"] = operation["kernel"], result.busiest
            break
    # Findings name the calls that led to a line; so does the join of tcgen05.mma, whose work is known at run time only.
    answer["kernels"] = [
        described_kernel(loaded, name, bool(any(records)) or bool(np.any(counts[name][2]))) for name in counts
    ]
    answer["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for arrays in counts.values():
        records += [array.tobytes() for array in arrays]
    return answer, records


def _executed(program: Program, result: LaunchOutcome, form: str) -> bool:
    """Whether any warp executed instructions of a form."""
    return any(int(result.warp_counts[at]) for at, name in enumerate(program.decoded.forms) if name == form)


def launch_shape(
    operation: Mapping[str, Any], options: Mapping[str, Any], budget: int, only_unit: int | None = None
) -> LaunchShape:
    """Return the numbers of a launch; with `only_unit`, of that CTA or cluster alone."""
    x, y, z = operation["grid"]
    bx, by, bz = operation["block"]
    return LaunchShape(
        grid=(x, y, z), block=(bx, by, bz), dynamic_smem_bytes=operation["dynamic_smem_bytes"],
        schedule=options["schedule"], seed=options["seed"], threads=options["threads"],
        zero_target_results=options["zero_target_results"], warp_instruction_budget=budget,
        resident_ctas=operation["resident_ctas"], cluster=_cluster(operation),
        registers=operation["registers"], cooperative=operation["cooperative"],
        programmatic=operation["programmatic"], only_unit=only_unit,
    )  # fmt: skip


def _cluster(operation: Mapping[str, Any]) -> tuple[int, int, int] | None:
    if operation["cluster"] is None:
        return None
    x, y, z = operation["cluster"]
    return x, y, z


def parameters_of(program: Program, operation: Mapping[str, Any], blobs: Sequence[bytes]) -> bytes:
    """Return the parameters of a launch as the kernel's own layout has them."""
    decoded: DecodedKernel = program.decoded
    given = operation["params"]
    if len(given) != len(decoded.params):
        raise ValueError(f"kernel {decoded.name} has {len(decoded.params)} parameters, the launch gives {len(given)}")
    block = bytearray(decoded.param_bytes)
    for parameter, blob in zip(decoded.params, given, strict=True):
        data = blobs[blob][: parameter.size_bytes]
        block[parameter.offset : parameter.offset + len(data)] = data
    return bytes(block)


def move(operation: Mapping[str, Any], blobs: Sequence[bytes], memory: Memory) -> None:
    """Do a memset, a copy or an upload."""
    name, offset = operation["target"]
    if operation["kind"] == "memset":
        element = np.frombuffer(operation["value"].to_bytes(operation["width_bytes"], "little"), np.uint8)
        data = memory.target(name, offset, len(element) * operation["count"])
        data.reshape(operation["count"], len(element))[:] = element  # a view: a copy could be of 4 GiB
    elif operation["kind"] == "copy":
        memory.copy((name, offset), tuple(operation["source"]), operation["size_bytes"])
    else:
        content = blobs[operation["data"]]
        memory.target(name, offset, len(content))[:] = np.frombuffer(content, np.uint8)


def _add(
    answer: dict[str, Any], counts: dict[str, tuple[Any, ...]], records: list[bytes], kernel: str, result: LaunchOutcome
) -> None:
    answer["launches"].append({"kernel": kernel, "reran": result.reran})
    answer["tma_bytes"] += result.tma_bytes
    answer["warp_instructions"] += result.warp_instructions
    answer["printed"] = (answer["printed"] + result.printed)[:_PRINT_LIMIT_BYTES]
    records.append(result.records)
    known = counts.get(kernel)
    fresh = (result.warp_counts, result.thread_counts, result.multiply_adds)
    counts[kernel] = fresh if known is None else tuple(a + b for a, b in zip(known, fresh, strict=True))


def described_kernel(loaded: LoadedModule, name: str, with_chains: bool) -> dict[str, Any]:
    """Return what a kernel's instructions are, for who reads counts and findings."""
    decoded = loaded.programs[name].decoded
    if with_chains and name not in loaded.chains:
        functions = loaded.module.module.functions
        chains = {function: call_chains(functions[function]) for function in {origin[0] for origin in decoded.origins}}
        loaded.chains[name] = [list(chains[function][at]) if at >= 0 else [] for function, at in decoded.origins]
    return {
        "name": name,
        "forms": decoded.forms,
        "families": decoded.families,
        "lines": decoded.lines.tolist(),
        "thread_multiply_adds": decoded.thread_multiply_adds.tolist(),
        "warp_multiply_adds": decoded.warp_multiply_adds.tolist(),
        "chains": loaded.chains.get(name, []) if with_chains else [],
    }
