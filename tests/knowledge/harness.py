"""Run a pack's template functions as a submission that holds them is run: on the emulator, or on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgym.build import Build, build
from ptxgym.device.cuda.executor import Executor
from ptxgym.device.cuda.gpu import Gpu, profile_of
from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Execution, RunOptions
from ptxgym.knowledge import load_pack, template_text
from ptxgym.plan import Argument, LaunchPlan, device_profile, record
from ptxgym.task import load_arch
from ptxgym.verdict import Failure, Severity

FOLDER = Path(__file__).parent
DEVICE = EmulatorDevice()
GPU: Gpu | None = None
"""Where kernels run instead, once; `tests/gpu/test_knowledge.py` sets it."""
SCHEDULES = (RunOptions(), RunOptions(schedule="lazy"), *(RunOptions(schedule="random", seed=s) for s in range(1, 5)))
Array = NDArray[Any]
TYPES = {np.dtype(np.float32): "float", np.dtype(np.uint16): "__nv_bfloat16", np.dtype(np.uint32): "unsigned"}


@dataclass(frozen=True)
class Ran:
    """What a test kernel came to under one schedule."""

    outputs: Mapping[str, Array]
    execution: Execution | None
    """None on a GPU."""

    def executed(self, form: str, times: int) -> bool:
        """Whether warps executed instructions whose PTX begins with `form` so often; a GPU does not count."""
        if self.execution is None:
            return True
        return sum(count.warp for count in self.execution.counts if count.form.startswith(form)) == times


def compiled(arch: str, file: str, inputs: Mapping[str, Array], outputs: Mapping[str, Any], axes: Any) -> Build:
    """Build the templates of `arch` and a test file as one submission; builds are cached."""
    text = template_text(load_pack(arch)) + _source(arch, file).read_text()
    pointers = [f"const {TYPES[array.dtype]}* {name}" for name, array in inputs.items()]
    pointers += [f"{TYPES[np.dtype(kind)]}* {name}" for name, (kind, _) in outputs.items()]
    parameters = ", ".join([*pointers, *(f"int {axis}" for axis in axes), "cudaStream_t stream"])
    built = build(text, declaration=f'extern "C" void run({parameters})', arch=load_arch(arch).code)
    assert isinstance(built, Build), (built.message, built)
    return built


def _source(arch: str, file: str) -> Path:
    own = FOLDER / arch / file
    return own if own.is_file() else FOLDER / "common" / file


def run(
    arch: str,
    file: str,
    *,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, tuple[Any, int]],
    axes: Mapping[str, int],
    schedules: tuple[RunOptions, ...] = SCHEDULES,
) -> Ran:
    """Run `file`'s `run` under every schedule; nothing above a note may be found, and all results must be the same.

    Args:
        arch: Of the pack.
        file: In `tests/knowledge/<arch>/` or `tests/knowledge/common/`; its `run` takes inputs, outputs, axes and the
            stream, in this order.
        inputs: float32, uint16 (as BF16) or uint32.
        outputs: dtype and number of elements; filled with 0xAB bytes before.
        axes: Values of the `int` parameters.
        schedules: The first one's run is returned.
    """
    built, plan, given = _prepared(arch, file, inputs, outputs, axes)
    if GPU is not None:
        return Ran(_on_gpu(GPU, built, plan, inputs, outputs), None)
    runs = []
    for options in schedules:
        execution = DEVICE.run(built, plan, given, options)
        assert isinstance(execution, Execution), (options, execution.code, execution.message, execution.findings)
        serious = [f"{f.code}: {f.message}" for f in execution.findings if f.severity is not Severity.NOTE]
        assert not serious, (options, serious)
        runs.append(Ran({n: execution.buffers[n].view(kind) for n, (kind, _) in outputs.items()}, execution))
    for other in runs[1:]:
        for name, array in runs[0].outputs.items():
            np.testing.assert_array_equal(other.outputs[name], array)
    return runs[0]


def codes_of(
    arch: str,
    file: str,
    *,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, tuple[Any, int]],
    axes: Mapping[str, int],
    schedules: tuple[RunOptions, ...] = SCHEDULES[:3],
) -> set[str]:
    """Codes of all that is found in `file` under any schedule, failures and notes included."""
    built, plan, given = _prepared(arch, file, inputs, outputs, axes)
    found: set[str] = set()
    for options in schedules:
        execution = DEVICE.run(built, plan, given, options)
        found |= {finding.code for finding in execution.findings}
        if isinstance(execution, Failure):
            found.add(execution.code)
    return found


def _prepared(
    arch: str, file: str, inputs: Mapping[str, Array], outputs: Mapping[str, tuple[Any, int]], axes: Mapping[str, int]
) -> tuple[Build, LaunchPlan, dict[str, NDArray[np.uint8]]]:
    """Build `file`, record its host code, fill its outputs with 0xAB bytes."""
    built = compiled(arch, file, inputs, outputs, axes)
    arguments = [Argument(name, "input", array.nbytes) for name, array in inputs.items()]
    arguments += [Argument(n, "output", np.dtype(kind).itemsize * count) for n, (kind, count) in outputs.items()]
    plan = record(built, arguments, axes, device_profile(arch) if GPU is None else profile_of(GPU))
    assert not isinstance(plan, Failure), plan.message
    given = {name: np.ascontiguousarray(array).reshape(-1).view(np.uint8) for name, array in inputs.items()}
    given |= {a.name: np.full(a.size_bytes, 0xAB, np.uint8) for a in arguments if a.role == "output"}
    return built, plan, given


def _on_gpu(
    gpu: Gpu, built: Build, plan: LaunchPlan, inputs: Mapping[str, Array], outputs: Mapping[str, tuple[Any, int]]
) -> dict[str, Array]:
    results = {name: np.zeros(count, kind) for name, (kind, count) in outputs.items()}
    with Executor.start(gpu) as executor:
        refused = executor.load(built, [plan])
        assert refused is None, refused
        called = executor.call(0, {n: np.ascontiguousarray(a) for n, a in inputs.items()}, results, timeout_s=20)
        assert not isinstance(called, Failure), called
    return results


def bf16(values: Array) -> NDArray[np.uint16]:
    """Bits of float values rounded to BF16, to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def as_float(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of BF16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def small_integers(seed: int, *shape: int) -> NDArray[np.float32]:
    """Whole numbers of at most 4, so that sums of products are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)
