"""Launch kernels of clusters on the emulator."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Bytes, Execution, RunOptions
from ptxgym.plan.model import (
    Blob,
    Buffer,
    BufferRef,
    FunctionAttributes,
    Launch,
    LaunchPlan,
    PointerRef,
    TensorMap,
    TensorMapRef,
)
from ptxgym.verdict import Failure
from tests.device.emulator.hazards.harness import Kernels

DEVICE = EmulatorDevice()
FAIR = RunOptions()
SCHEDULES = (FAIR, RunOptions(schedule="lazy"), *(RunOptions(schedule="random", seed=s) for s in range(12)))
Dim3 = tuple[int, int, int]


def launch(
    kernels: Kernels,
    kernel: str,
    out_words: int,
    *,
    cluster: Dim3 | None = (2, 1, 1),
    grid: Dim3 = (2, 1, 1),
    block: int = 64,
    given: NDArray[np.uint32] | None = None,
    out: NDArray[np.uint32] | None = None,
    tensor_map: TensorMap | None = None,
    smem_bytes: int = 0,
    options: RunOptions = FAIR,
) -> Execution | Failure:
    """Run one kernel: parameters are a tensor map if there is one, `in` if given, and `out`."""
    data: dict[str, Bytes] = {}
    params = []
    if tensor_map is not None:
        params.append(Blob(data="00" * 128, refs=(TensorMapRef(at=0, index=0),)))
    if given is not None:
        data["in"] = np.ascontiguousarray(given).view(np.uint8)
        if tensor_map is None:
            params.append(_pointer("in"))
    data["out"] = (np.full(out_words, 0xABABABAB, np.uint32) if out is None else out.copy()).view(np.uint8)
    params.append(_pointer("out"))
    plan = LaunchPlan(
        build_key=kernels.build.key,
        device_profile="h100",
        axes={},
        buffers=tuple(
            Buffer(name=name, role="output" if name == "out" else "input", size_bytes=array.size)
            for name, array in data.items()
        ),
        tensor_maps=() if tensor_map is None else (tensor_map,),
        functions=(FunctionAttributes(kernel=kernel, max_dynamic_smem_bytes=smem_bytes),),
        operations=(
            Launch(
                kernel=kernel,
                grid=grid,
                block=(block, 1, 1),
                dynamic_smem_bytes=smem_bytes,
                params=tuple(params),
                cluster=cluster,
            ),
        ),
        isolation="full",
        recorder_revision=1,
    )
    return DEVICE.run(kernels.build, plan, data, options)


def _pointer(name: str) -> Blob:
    return Blob(data="00" * 8, refs=(PointerRef(at=0, target=BufferRef(buffer=name)),))


def words(run: Execution | Failure) -> NDArray[np.uint32]:
    """Return `out` of a run that came to an end with no finding above a note."""
    assert isinstance(run, Execution), (run.code, run.message)
    serious = [f"{f.severity} {f.code}: {f.message}" for f in run.findings if f.severity != "note"]
    assert not serious, serious
    return run.buffers["out"].view(np.uint32)


def codes(run: Execution | Failure, severity: str | None = None) -> set[str]:
    """Return the codes of a run's findings."""
    return {f.code for f in run.findings if severity in (None, f.severity)}
