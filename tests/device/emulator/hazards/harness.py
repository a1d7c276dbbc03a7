"""Compile small kernels to PTX and launch them on the emulator with a hand-written plan."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ptxgym.build import Build, KernelResources, find_toolchain
from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Bytes, Execution, RunOptions
from ptxgym.plan.model import Blob, Buffer, BufferRef, FunctionAttributes, Launch, LaunchPlan, PointerRef
from ptxgym.verdict import Failure, Finding

SCHEDULES = (RunOptions(), RunOptions(schedule="lazy"), *(RunOptions(schedule="random", seed=s) for s in range(3)))


@dataclass(frozen=True)
class Kernels:
    """A compiled file of kernels."""

    source: Path
    build: Build

    @property
    def text(self) -> list[str]:
        """The lines of the source."""
        return self.source.read_text().splitlines()

    def mangled(self, name: str, argument: str) -> str:
        """Return the mangled name of an instance of a kernel template; `argument` as mangled, such as `b1`."""
        prefix = f"_Z{len(name)}{name}IL{argument}E"
        found: list[str] = [word for word in re.findall(r"\.entry (\w+)\(", self.ptx) if word.startswith(prefix)]
        assert len(found) == 1, (prefix, found)
        return found[0]

    @cached_property
    def ptx(self) -> str:
        """The PTX."""
        return self.build.ptx.read_text()

    def marked(self, function: str, code: str) -> set[int]:
        """Return the lines of `function` that the comment `!code` marks."""
        inside, lines = False, set()
        for number, line in enumerate(self.text, 1):
            if f" {function}(" in line and "__global__" in line:
                inside = True
            elif line.startswith("}"):
                inside = False
            if inside and f"!{code}" in line.replace("// ", ""):
                lines.add(number)
        return lines


def compile_ptx(source: Path, folder: Path) -> Kernels:
    """Compile `source` to PTX in `folder`; nothing but the PTX is made."""
    toolchain = find_toolchain()
    ptx = folder / f"{source.stem}.ptx"
    command = [
        toolchain.nvcc,
        "-std=c++17",
        "-O3",
        "-lineinfo",
        "-gencode",
        "arch=compute_90a,code=compute_90a",
        "-ptx",
    ]
    subprocess.run([*map(str, command), str(source), "-o", str(ptx)], check=True, capture_output=True, text=True)
    return Kernels(source, ptx_build(source, ptx))


def resources(ptx: Path) -> tuple[KernelResources, ...]:
    """Return nominal resources of every kernel."""
    names = re.findall(r"\.entry (\w+)\(", ptx.read_text())
    return tuple(KernelResources(name, 64, 0, 0, 0, 0, (), ()) for name in names)


def ptx_build(source: Path, ptx: Path) -> Build:
    """Return a Build of which only source and PTX exist."""
    nothing = ptx.parent / "absent"
    return Build(
        key=f"test-{ptx.stem}", arch="sm_90a", folder=ptx.parent, source=source, library=nothing, cubin=nothing,
        ptx=ptx, sass=nothing, compiler="test", flags=(), kernels=resources(ptx), diagnostics=(),
    )  # fmt: skip


def plan_of(
    kernel: str, sizes: Mapping[str, int], block: int, smem_bytes: int = 0, build_key: str = "test"
) -> LaunchPlan:
    """Return a plan with one launch of one CTA; the parameters are pointers to buffers of the given sizes."""
    params = tuple(Blob(data="00" * 8, refs=(PointerRef(at=0, target=BufferRef(buffer=name)),)) for name in sizes)
    return LaunchPlan(
        build_key=build_key,
        device_profile="h100",
        axes={},
        buffers=tuple(
            Buffer(name=name, role="output" if name == "out" else "input", size_bytes=size)
            for name, size in sizes.items()
        ),
        functions=(FunctionAttributes(kernel=kernel, max_dynamic_smem_bytes=smem_bytes),),
        operations=(
            Launch(kernel=kernel, grid=(1, 1, 1), block=(block, 1, 1), dynamic_smem_bytes=smem_bytes, params=params),
        ),
        isolation="full",
        recorder_revision=1,
    )


FAIR = RunOptions()
DEVICE = EmulatorDevice()


def launch(
    kernels: Kernels, kernel: str, *, block: int = 64, inputs: bool = False, options: RunOptions = FAIR
) -> Execution | Failure:
    """Run one kernel on one CTA: parameter `out` (8 KiB), and `in` (8 KiB of counting words) if it has inputs."""
    words = np.arange(2048, dtype="<u4").view(np.uint8)
    buffers: dict[str, Bytes] = {"out": np.full(8192, 0xAB, np.uint8)}
    if inputs:
        buffers["in"] = words
    plan = plan_of(kernel, {name: data.size for name, data in buffers.items()}, block, build_key=kernels.build.key)
    return DEVICE.run(kernels.build, plan, buffers, options)


def lines_of(finding: Finding) -> set[int | None]:
    """Return every line that a finding names."""
    return {finding.line, *(party.line for party in finding.parties)}
