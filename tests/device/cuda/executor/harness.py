"""Builds, plans and cubins by hand, and executors on the fake driver."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from ptxgym.build.model import Build, KernelResources
from ptxgym.device.cuda.executor import Executor
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.plan.model import (
    Blob,
    Buffer,
    BufferRef,
    Dim3,
    FunctionAttributes,
    Launch,
    LaunchPlan,
    Operation,
    PointerRef,
    TensorMap,
    TensorMapRef,
)

GPU = Gpu(uuid="GPU-fake", index=0, name="fake", cc=(9, 0), memory_bytes=1 << 30, driver="580.0")
MIB = 1 << 20

# Parameter sizes of what fake_cuda.cpp can do.
BEHAVIOURS: Mapping[str, tuple[int, ...]] = {
    "copy": (8, 8, 8), "poke": (8, 8, 4), "scan": (8, 4), "bump": (8,), "print": (4,), "assert": (), "fault": (4,),
    "hang": (), "die": (), "nothing": (128, 8), "doze": (4,),
}  # fmt: skip


def literal(value: int, size: int) -> Blob:
    return Blob(data=value.to_bytes(size, "little", signed=value < 0).hex())


def pointer(buffer: str, offset: int = 0) -> Blob:
    return Blob(data="00" * 8, refs=(PointerRef(at=0, target=BufferRef(buffer=buffer, offset=offset)),))


def map_param(index: int) -> Blob:
    return Blob(data="00" * 128, refs=(TensorMapRef(at=0, index=index),))


def ref(buffer: str, offset: int = 0) -> BufferRef:
    return BufferRef(buffer=buffer, offset=offset)


def launch(kernel: str, *params: Blob, grid: Dim3 = (1, 1, 1), block: Dim3 = (32, 1, 1), **more: object) -> Launch:
    fields = {"kernel": kernel, "grid": grid, "block": block, "dynamic_smem_bytes": 0, "params": params, **more}
    return Launch.model_validate(fields)


def plan(
    buffers: Sequence[tuple[str, str, int]],
    *operations: Operation,
    maps: Sequence[TensorMap] = (),
    functions: Sequence[FunctionAttributes] = (),
) -> LaunchPlan:
    return LaunchPlan(
        build_key="b", device_profile="h200", axes={}, tensor_maps=tuple(maps), functions=tuple(functions),
        buffers=tuple(Buffer.model_validate({"name": n, "role": r, "size_bytes": s}) for n, r, s in buffers),
        operations=tuple(operations), isolation="full", recorder_revision=1,
    )  # fmt: skip


def cubin(sections: Mapping[str, tuple[int, Sequence[tuple[str, int, int, int]]]]) -> bytes:
    """An ELF file with `sections`: name → (bytes, variables of (name, offset, bytes, st_other))."""
    strings, symbols = bytearray(b"\0"), bytearray(24)

    def text(name: str) -> int:
        strings.extend(name.encode() + b"\0")
        return len(strings) - len(name) - 1

    headers = [struct.pack("<IIQQQQIIQQ", *(0,) * 10)]
    for number, (section, (size, variables)) in enumerate(sections.items(), start=1):
        kind = 8 if section == ".nv.global" else 1
        headers.append(struct.pack("<IIQQQQIIQQ", text(section), kind, 3, 0, 64, size, 0, 0, 8, 0))
        for name, offset, size_bytes, other in variables:
            symbols += struct.pack("<IBBHQQ", text(name), 1, other, number, offset, size_bytes)
    count = len(headers)
    names = text(".symtab"), text(".strtab")
    at = 64
    headers.append(struct.pack("<IIQQQQIIQQ", names[0], 2, 0, 0, at, len(symbols), count + 1, 1, 8, 24))
    headers.append(struct.pack("<IIQQQQIIQQ", names[1], 3, 0, 0, at + len(symbols), len(strings), 0, 0, 1, 0))
    table = at + len(symbols) + len(strings)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, table, 0, 64, 0, 0, 64, len(headers), count + 1)
    return ident + header + bytes(symbols) + bytes(strings) + b"".join(headers)


class Fake:
    """The fake GPU: its script, and what executors on it called."""

    def __init__(self, driver: Path, folder: Path) -> None:
        self._driver = driver
        self.folder = folder
        self._script = folder / "script"
        self._log = folder / "log"
        self._started: list[Executor] = []

    def start(
        self,
        script: Sequence[str] = (),
        *,
        side_streams: bool = True,
        wrapper: Sequence[str] = (),
        env: Mapping[str, str] = {},
    ) -> Executor:
        kernels = [
            f"kernel {name} {name.split('_')[0]} {' '.join(map(str, BEHAVIOURS[name.split('_')[0]]))}"
            for name in (*BEHAVIOURS, "copy_2", "copy_clustered")
        ]
        self._script.write_text("\n".join([*kernels, *script]) + "\n")
        own = {"LD_LIBRARY_PATH": str(self._driver), "FAKE_CUDA": str(self._script), "FAKE_CUDA_LOG": str(self._log)}
        executor = Executor.start(GPU, side_streams=side_streams, wrapper=wrapper, env={**own, **env})
        self._started.append(executor)
        return executor

    def build(self, image: bytes | None = None) -> Build:
        path = self.folder / "kernel.cubin"
        path.write_bytes(cubin({}) if image is None else image)
        kernels = tuple(
            KernelResources(name, 32, 0, 0, 0, 0, BEHAVIOURS[name.split("_")[0]], BEHAVIOURS[name.split("_")[0]],
                            cluster=(2, 1, 1) if name == "copy_clustered" else None)
            for name in (*BEHAVIOURS, "copy_2", "copy_clustered")
        )  # fmt: skip
        none = self.folder / "none"
        return Build("b", "sm_90a", self.folder, none, none, path, none, none, "nvcc 13.0.88", (), kernels, ())

    def loaded(
        self,
        *plans: LaunchPlan,
        script: Sequence[str] = (),
        image: bytes | None = None,
        wrapper: Sequence[str] = (),
        env: Mapping[str, str] = {},
    ) -> Executor:
        executor = self.start(script, wrapper=wrapper, env=env)
        assert executor.load(self.build(image), plans) is None
        return executor

    def log(self, pattern: str = "") -> list[str]:
        """Lines of the driver's log that match."""
        return [line for line in self._log.read_text().splitlines() if re.search(pattern, line)]

    def timed(self) -> list[str]:
        """What the last call enqueued between the two events that time it, without the events of other streams."""
        lines = self.log()
        stop = max(index for index, line in enumerate(lines) if line.startswith("record")) + 1
        begin = max(index for index, line in enumerate(lines[:stop]) if line == "synchronize")
        return [line for line in lines[begin + 1 : stop] if not line.startswith("visible")]

    def close(self) -> None:
        for executor in self._started:
            executor.kill()
