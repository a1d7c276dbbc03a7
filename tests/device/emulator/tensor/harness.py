"""Run conformance kernels on the emulator's core, inside this process."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ptxgym import native
from ptxgym.build.toolchain import find_toolchain
from ptxgym.device.emulator import tensor_map
from ptxgym.device.emulator.core import Core, LaunchOutcome, LaunchShape, Outcome, PlacedBuffer, Program
from ptxgym.device.emulator.decode import DecodedModule
from ptxgym.device.emulator.findings import RECORD_DTYPE
from ptxgym.plan.model import BufferRef, TensorMap
from tests.gpu.cases import Case, Map
from tests.gpu.cases.ptx import module as ptx_module

CONFORMANCE = Path(__file__).parents[3] / "gpu" / "conformance" / "kernels.cu"
IN, OUT = 0x1000_0000_0000, 0x1000_1000_0000
SCHEDULES = ("fair", "lazy", "random")


@dataclass(frozen=True)
class Run:
    """What one case came to."""

    output: NDArray[np.uint8]
    launch: LaunchOutcome

    @property
    def records(self) -> NDArray[np.void]:
        return np.frombuffer(self.launch.records, RECORD_DTYPE)

    def codes(self, severity: int = 2) -> set[str]:
        """Codes of findings of at least this severity (2 error, 1 warning)."""
        return {r["code"].decode() for r in self.records if r["severity"] >= severity}

    def message(self, code: str) -> str:
        return next(r["message"].decode() for r in self.records if r["code"].decode() == code)


def compile_ptx(source: Path, folder: Path) -> str:
    """Return the PTX of a source file."""
    ptx = folder / f"{source.stem}.ptx"
    flags = ["-std=c++17", "-O2", "-lineinfo", "-gencode", "arch=compute_90a,code=sm_90a", "-ptx"]
    subprocess.run([find_toolchain().nvcc, *flags, "-o", ptx, source], check=True, capture_output=True)
    return ptx.read_text()


class Kernels:
    """The kernels of one source file."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._core = Core(native.library("emulator"))
        self._module = DecodedModule.parse(compile_ptx(source, folder), str(source))
        self.program = lru_cache(maxsize=None)(self._load)

    def _load(self, name: str, text: str = "") -> Program:
        module = DecodedModule.parse(ptx_module([text]), name) if text else self._module
        return self._core.load(module.kernel(name))

    def run(self, case: Case, schedule: str = "fair", *, seed: int = 0, zero_target_results: bool = False) -> Run:
        source = np.frombuffer(case.input or bytes(16), np.uint8).copy()
        output = np.full(case.out_bytes, 0xEE, np.uint8)
        params = packed(case.map) + IN.to_bytes(8, "little") + OUT.to_bytes(8, "little") + case.params()
        shape = LaunchShape(
            grid=(max(case.cluster, 1), 1, 1),
            block=(case.block, 1, 1),
            cluster=(case.cluster, 1, 1) if case.cluster else None,
            dynamic_smem_bytes=case.smem_bytes,
            schedule=schedule,
            seed=seed,
            zero_target_results=zero_target_results,
            warp_instruction_budget=10_000_000,
        )
        buffers = [PlacedBuffer("in", IN, source, is_input=True), PlacedBuffer("out", OUT, output)]
        return Run(output, self.program(case.kernel, case.ptx).launch(shape, buffers, params.ljust(256, b"\0")))


def packed(m: Map | None) -> bytes:
    if m is None:
        return bytes(128)
    model = TensorMap(
        data_type=m.type,
        global_address=BufferRef(buffer=m.over),
        global_dim=m.dims,
        global_strides_bytes=m.byte_strides,
        box_dim=m.box,
        element_strides=m.steps,
        swizzle=m.swizzle,
        oob_fill=m.fill,
    )
    return tensor_map.pack(model, {"in": IN, "out": OUT}[m.over] + m.offset)


def succeeded(run: Run) -> bool:
    return run.launch.outcome == Outcome.OK
