"""wgmma at every N that the PTX ISA has: the kernels differ in nothing but N and so are written here, as PTX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.gpu.cases.model import Case
from tests.gpu.cases.wgmma import B_START, IMAGE, dense, wgmma

WIDTHS = range(8, 257, 8)
"""PTX ISA 9.7.15.1: N is a multiple of 8 up to 256."""
TYPES = {"bf16": "f32.bf16.bf16", "f16": "f32.f16.f16", "half": "f16.f16.f16"}
HERE_ALREADY = {("bf16", 8), ("bf16", 64), ("bf16", 256), ("f16", 8), ("f16", 64), ("half", 8), ("half", 64)}
"""Kernels of `conformance/wgmma.cuh`."""
FEW = (16, 24, 104, 200, 256)
"""Widths of the types whose layout is the same or half as wide."""


def shape_cases() -> Iterator[Case]:
    """K-major operands with a swizzle of 128 bytes, one step, whole numbers."""
    a, b = dense(0, "128B", False), dense(B_START, "128B", False)
    for types in TYPES:
        for width in WIDTHS if types == "bf16" else FEW:
            if (types, width) not in HERE_ALREADY:
                half = types == "half"
                registers = width // 4 if half else width // 2
                kind = "bf16" if types == "bf16" else "f16"
                kernel = f"wgmma_{types}_n{width}_kk"
                case = wgmma(f"wgmma/shape/{types}/{width}", kernel, a, b, registers=registers, kind=kind, half=half)
                yield with_kernel(case, f"m64n{width}k16.{TYPES[types]}", registers)


def with_kernel(case: Case, form: str, registers: int, *, in_registers: bool = False, b_major: int = 0) -> Case:
    """Return the case with the PTX of its kernel: as `run_wgmma` of `conformance/wgmma.cuh` has it, for one step.

    `form` is shape, `.satfinite` and types, such as `m64n8k16.f32.bf16.bf16`; only elements of 16 bits have a choice of
    majors, only those of floats one of signs.
    """
    result, elements = form.split(".")[-3:-1]
    accumulators = [f"acc{i}" for i in range(registers)]
    kind, copies = ("f32" if result == "f32" else "b32"), IMAGE // 16 // 128
    lines = [f".visible .entry {case.kernel}(.param .align 128 .b8 params[256])", ".maxntid 128", "{"]
    lines += [f".reg .{kind} {', '.join(accumulators)};", ".reg .b32 tid, image, low, at, w0, w1, w2, w3, keep;"]
    lines += [".reg .b64 in, out, from, place, a, b, base;", ".reg .pred scale, more;"]
    lines += ["ld.param.u64 in, [params+128];", "ld.param.u64 out, [params+136];", "mov.u32 tid, %tid.x;"]
    lines += ["mov.u32 image, dynamic_smem;", "add.u32 image, image, 1023;", "and.b32 image, image, -1024;"]
    lines += ["mul.wide.u32 from, tid, 16;", "add.u64 from, from, in;", "mad.lo.u32 at, tid, 16, image;"]
    lines += ["mov.u32 low, 0;", "COPY:", "ld.global.v4.u32 {w0, w1, w2, w3}, [from];"]
    lines += ["st.shared.v4.u32 [at], {w0, w1, w2, w3};", "add.u64 from, from, 2048;", "add.u32 at, at, 2048;"]
    lines += ["add.u32 low, low, 1;", f"setp.lt.u32 more, low, {copies};", "@more bra COPY;"]
    lines += [f"mul.wide.u32 place, tid, {4 * registers};", f"add.u64 from, in, {IMAGE};", "add.u64 from, from, place;"]
    lines += [f"ld.global.{kind} {name}, [from+{4 * i}];" for i, name in enumerate(accumulators)]
    if in_registers:
        lines += ["mul.wide.u32 from, tid, 16;", "add.u64 from, from, in;"]
        lines += [f"ld.global.v4.u32 {{w0, w1, w2, w3}}, [from+{IMAGE + 128 * 4 * registers}];"]
    lines += ["fence.proxy.async.shared::cta;", "bar.sync 0;", "shr.u32 low, image, 4;", "cvt.u64.u32 base, low;"]
    lines += ["ld.param.u64 a, [params+216];", "add.u64 a, a, base;"]
    lines += ["ld.param.u64 b, [params+224];", "add.u64 b, b, base;", "ld.param.u32 keep, [params+160];"]
    lines += ["setp.ne.u32 scale, keep, 0;", "wgmma.fence.sync.aligned;"]
    matrix_a = "{w0, w1, w2, w3}" if in_registers else "a"
    signs = "" if result == "s32" else ", 1, 1"
    majors = "" if elements not in ("f16", "bf16") else f", {b_major}" if in_registers else f", 0, {b_major}"
    operands = f"{{{', '.join(accumulators)}}}, {matrix_a}, b, scale{signs}{majors}"
    lines += [f"wgmma.mma_async.sync.aligned.{form} {operands};"]
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;", "add.u64 out, out, place;"]
    lines += [f"st.global.{kind} [out+{4 * i}], {name};" for i, name in enumerate(accumulators)]
    text = "\n".join([*lines, "ret;", "}"]) + "\n"
    return replace(case, ptx=text)
