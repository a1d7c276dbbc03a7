"""Run PTX text on the emulator's core, inside this process."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ptxgym import native
from ptxgym.device.emulator.core import Core, LaunchOutcome, LaunchShape, Program
from ptxgym.device.emulator.decode import DecodedModule
from ptxgym.device.emulator.findings import RECORD_DTYPE
from ptxgym.device.emulator.placement import place
from ptxgym.device.emulator.session import Memory, placed

Array = NDArray[np.generic]
HEADER = ".version 9.0\n.target sm_90a\n.address_size 64\n"
PARAMS = ".param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3"
REGISTERS = """
  .reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .b64 %rd<32>; .reg .f32 %f<32>; .reg .f64 %fd<16>;
  ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2]; ld.param.u64 %rd3, [p3];
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.s32 %r3, %r1, %r2, %r0;
"""
"""Every kernel has its parameters in %rd0-3, the thread index in %r0, the CTA in %r1 and the global index in %r3."""


@dataclass(frozen=True)
class Run:
    """What a launch came to, and the buffers after it."""

    launch: LaunchOutcome
    buffers: Mapping[str, NDArray[np.uint8]]

    @property
    def records(self) -> NDArray[np.void]:
        return np.frombuffer(self.launch.records, RECORD_DTYPE)

    @property
    def codes(self) -> list[str]:
        return [record["code"].decode() for record in self.records]

    def message(self, code: str) -> str:
        return next(record["message"].decode() for record in self.records if record["code"].decode() == code)

    @property
    def fatal(self) -> str:
        return next(record["code"].decode() for record in self.records if record["fatal"])

    def words(self, name: str = "out", dtype: str = "<u4") -> Array:
        return self.buffers[name].view(dtype)

    def count(self, program: Program, form: str) -> tuple[int, int]:
        """Warp and thread executions of all instructions of one form."""
        at = [i for i, f in enumerate(program.decoded.forms) if f == form]
        assert at, f"no {form} in the kernel"
        return int(self.launch.warp_counts[at].sum()), int(self.launch.thread_counts[at].sum())


@lru_cache(maxsize=1)
def core() -> Core:
    return Core(native.library("emulator"))


@lru_cache(maxsize=512)
def module(text: str) -> DecodedModule:
    return DecodedModule.parse(text)


@lru_cache(maxsize=512)
def program(text: str) -> Program:
    parsed = module(text)
    return core().load(parsed.kernel(parsed.names[0]))


def kernel(body: str, declarations: str = "") -> str:
    """A module with one kernel of four pointer parameters; `body` ends without `ret`."""
    return f"{HEADER}{declarations}\n.visible .entry k({PARAMS}) {{{REGISTERS}{body}\n  ret;\n}}\n"


def run(
    text: str,
    buffers: Mapping[str, Array],
    *,
    grid: int = 1,
    block: int = 32,
    inputs: Sequence[str] = (),
    written: bool = True,
    **shape: object,
) -> Run:
    """Launch the module's first kernel; the parameters are the addresses of `buffers` in order.

    Buffers of `inputs` are inputs; of the others every byte counts as written unless `written` is False.
    """
    loaded = program(text)
    described = []
    arena = np.zeros(sum(a.nbytes + 64 for a in buffers.values()) + 64, np.uint8)
    offset = 0
    addresses = place((name, a.nbytes) for name, a in buffers.items())
    for name, array in buffers.items():
        arena[offset : offset + array.nbytes] = array.view(np.uint8).reshape(-1)
        role = "input" if name in inputs else "output"
        described.append(
            {"name": name, "size": array.nbytes, "role": role, "offset": offset, "address": addresses[name]}
        )
        offset += (array.nbytes + 63) // 64 * 64
    memory = Memory([placed(item, arena) for item in described], module(text).symbols)
    if written:
        for buffer in memory.buffers.values():
            if buffer.initialised is not None:
                buffer.initialised[:] = 1
    loaded.relocate(memory.addresses)
    params = struct.pack(f"<{len(buffers)}Q", *addresses.values()).ljust(loaded.decoded.param_bytes, b"\0")
    options = {"warp_instruction_budget": 20_000_000, **shape}
    launched = loaded.launch(LaunchShape((grid, 1, 1), (block, 1, 1), **options), memory.ascending, params)  # type: ignore[arg-type]
    return Run(launched, {name: memory.buffers[name].data for name in buffers})


# ---- element-wise operations

_REGISTER = {"8": "b16", "16": "b16", "32": "b32", "64": "b64"}


def bits_of(ptx_type: str) -> int:
    """Width of `u32`, `bf16x2`, …"""
    if ptx_type.endswith("x2"):
        return 32 if ptx_type[:-2] in ("f16", "bf16") else 16
    return {"bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8}.get(ptx_type) or int(ptx_type.lstrip("usbf"))


def elementwise(body: str, result: str, sources: Sequence[str]) -> str:
    """A kernel that applies `body` to %a, %b, %c, %e (of the types `sources`) and stores %d; %q, %t, %u are free."""
    names = "abce"
    lines = [
        f".reg .{_REGISTER[str(bits_of(result))]} %d;",
        ".reg .pred %q, %q2; .reg .b64 %at; .reg .b32 %t<4>; .reg .b16 %u<4>;",
    ]
    for name, source, pointer in zip(names, sources, range(4), strict=False):
        bits = bits_of(source)
        lines.append(f".reg .{_REGISTER[str(bits)]} %{name};")
        lines.append(f"mul.wide.u32 %at, %r3, {bits // 8}; add.s64 %at, %at, %rd{pointer};")
        lines.append(f"ld.global.{'u8' if bits == 8 else f'b{bits}'} %{name}, [%at];")
    bits = bits_of(result)
    lines.append(body)
    lines.append(f"mul.wide.u32 %at, %r3, {bits // 8}; add.s64 %at, %at, %rd10;")
    lines.append(f"st.global.{'u8' if bits == 8 else f'b{bits}'} [%at], %d;")
    text = "\n  ".join(lines)
    parameters = ", ".join(f".param .u64 p{i}" for i in range(5))
    registers = REGISTERS.replace("ld.param.u64 %rd0", "ld.param.u64 %rd10, [p4]; ld.param.u64 %rd0")
    return f"{HEADER}.visible .entry k({parameters}) {{{registers}{text}\n  ret;\n}}\n"


def apply(body: str, result: str, sources: Sequence[str], *operands: Array) -> Array:
    """Run an element-wise operation over arrays of equal length (a multiple of 32); returns unsigned words."""
    count = len(operands[0])
    dtype = np.dtype(f"<u{max(1, bits_of(result) // 8)}")
    buffers: dict[str, Array] = {f"in{i}": np.ascontiguousarray(operand) for i, operand in enumerate(operands)}
    for i in range(len(operands), 4):
        buffers[f"in{i}"] = np.zeros(16, np.uint8)
    buffers["out"] = np.zeros(count, dtype)
    done = run(elementwise(body, result, sources), buffers, grid=count // 32, inputs=[n for n in buffers if n != "out"])
    assert done.launch.outcome == 0, done.records
    return done.words("out", dtype.str)
