"""One instruction per thread: every arithmetic, comparison, bit and conversion form of the table of accepted forms.

Forms that the PTX ISA defines exactly must agree bit for bit (NaNs as NaNs: their payload is not specified).
Approximations must lie within the error that the ISA states, on hardware and on the emulator alike: the emulator rounds
the exact value once, so the two differ by no more than that bound and half a unit in the last place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.gpu.cases.lines import more_lines
from tests.gpu.cases.model import Case
from tests.gpu.cases.ptx import cell_space, kernel_name, one_instruction, out_bytes, results

ACCEPTED = Path(__file__).parents[2] / "device" / "emulator" / "decode" / "accepted.txt"
SECTIONS = ("integer", "floating", "comparison", "bits", "conversions", "memory", "warp")
MORE = (
    "add.cc.u32 d32, a32, b32; addc.u32 d232, c32, e32",
    "add.cc.u64 d64, a64, b64; addc.u64 d264, c64, e64",
    "sub.cc.u32 d32, a32, b32; subc.u32 d232, c32, e32",
    "mad.lo.cc.u32 d32, a32, b32, c32; madc.hi.u32 d232, a32, b32, e32",
    "mad.hi.cc.u32 d32, a32, b32, c32; addc.u32 d232, e32, e32",
    "mad.lo.cc.u64 d64, a64, b64, c64; madc.hi.u64 d264, a64, b64, e64",
    "rcp.approx.f32 d32, a32",
    "sqrt.approx.ftz.f32 d32, a32",
    "rsqrt.approx.f32 d32, a32",
    "sin.approx.ftz.f32 d32, a32",
    "cos.approx.f32 d32, a32",
    "lg2.approx.ftz.f32 d32, a32",
    "ex2.approx.f32 d32, a32",
    "ex2.approx.f16 d16, a16",
    "ex2.approx.ftz.bf16x2 d32, a32",
    "tanh.approx.f16 d16, a16",
    "tanh.approx.f16x2 d32, a32",
    "tanh.approx.bf16 d16, a16",
    "div.approx.f32 d32, a32, b32",
    "div.full.ftz.f32 d32, a32, b32",
    "cvt.rn.satfinite.e5m2x2.f32 d16, a32, b32",
    "cvt.rn.satfinite.e4m3x2.f16x2 d16, a32",
    "cvt.rn.f16x2.e5m2x2 d32, a16",
    "cvt.rn.relu.bf16x2.f32 d32, a32, b32",
    "cvt.rz.bf16x2.f32 d32, a32, b32",
    "cvt.rn.f16x2.f32 d32, a32, b32",
    "atom.global.exch.b32 d32, [a64], b32",
    "atom.shared.cas.b64 d64, [a32], b64, c64",
    "red.global.add.noftz.v4.bf16x2 [a64], {x0, x1, x2, x3}",
    "atom.global.add.f32 d32, [a64], b32",
    "red.global.add.f32 [a64], b32",
    "redux.sync.min.s32 d32, a32, e32",
    "redux.sync.max.u32 d32, a32, e32",
    "redux.sync.and.b32 d32, a32, e32",
    "redux.sync.or.b32 d32, a32, e32",
)
"""Carry chains, which need two instructions, and variants that the table lists only once."""
NOT_HERE = (
    r"^(?:activemask|elect|bar\.warp|mov)|\.cc\b|addc|subc|madc"  # the warp's shape; carry chains: see MORE
    r"|cache_hint|\.nc|128\b|\.v8|ldu|\.f32x2|e2m[13]x2|e3m2x2|ue8m0"  # policies, 128-bit registers, other generations
    r"|^cvt\S*\.rs\.|^redux\S*\.f32"  # of sm_100a
    r"|\.local|\.param|\.const|\[\d"  # spaces in which no cell lies: an address of global memory means nothing there
)
"""Forms of the table that need more than their operands."""
THREADS, FEW_THREADS, MEMORY_THREADS = 1024, 256, 128
FULL_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Bound:
    """What an approximation may differ from the exact value by."""

    function: Callable[..., NDArray[np.float64]]
    source: str
    """Where the bound stands."""
    relative: float = 0.0
    absolute: float = 0.0
    ulps: float = 0.0
    """Of the result's type."""
    inputs: tuple[float, float] = (-np.inf, np.inf)
    """Magnitudes of the last operand between which it holds."""


def _reciprocal_root(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / np.sqrt(x)


def _quotient(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    return x / y


BOUNDS = {
    "ex2.f32": Bound(np.exp2, "PTX ISA 9.7.3.21", ulps=2),
    "ex2.f16": Bound(np.exp2, "PTX ISA 9.7.4.10", relative=2**-9.9),
    "ex2.bf16": Bound(np.exp2, "PTX ISA 9.7.4.10", relative=2**-7),
    "lg2.f32": Bound(np.log2, "PTX ISA 9.7.3.20", relative=2**-22, absolute=2**-22),
    "rcp.f32": Bound(np.reciprocal, "PTX ISA 9.7.3.13", ulps=1),
    "rcp.f64": Bound(np.reciprocal, "the 20 bits of mantissa of the result, PTX ISA 9.7.3.14", relative=2**-19),
    "rsqrt.f32": Bound(_reciprocal_root, "PTX ISA 9.7.3.16", relative=2**-22.9),
    "rsqrt.f64": Bound(_reciprocal_root, "the 20 bits of mantissa of the result, PTX ISA 9.7.3.17", relative=2**-19),
    "sqrt.f32": Bound(np.sqrt, "PTX ISA 9.7.3.15", relative=2**-22),
    "sin.f32": Bound(np.sin, "PTX ISA 9.7.3.18", absolute=2**-20.5, inputs=(0, 2 * np.pi)),
    "cos.f32": Bound(np.cos, "PTX ISA 9.7.3.19", absolute=2**-20.5, inputs=(0, 2 * np.pi)),
    "tanh.f32": Bound(np.tanh, "PTX ISA 9.7.3.22", relative=2**-11),
    "tanh.f16": Bound(np.tanh, "PTX ISA 9.7.4.9", absolute=2**-10.987),
    "tanh.bf16": Bound(np.tanh, "PTX ISA 9.7.4.9", absolute=2**-8),
    "div.f32": Bound(_quotient, "PTX ISA 9.7.3.8", ulps=2, inputs=(2.0**-126, 2.0**126)),
}


def bound_of(instruction: str) -> Bound | None:
    """Return the bound of an approximation, None for a form that is exact."""
    name, *modifiers = instruction.split()[0].split(".")
    if not {"approx", "full"} & set(modifiers):
        return None
    return BOUNDS[f"{name}.{modifiers[-1].removesuffix('x2')}"]


def nan_type(instruction: str) -> str:
    """Return the type of the floats that an instruction computes, without `x2`; empty where it only moves bits."""
    updates = (statement for statement in instruction.split("; ") if statement.startswith(("atom.", "red.")))
    name, *modifiers = next(updates, instruction).split()[0].split(".")
    moves = ("ld", "st", "selp", "slct", "copysign", "testp", "setp", "shfl", "match")
    types = [
        m.removesuffix("x2") for m in modifiers if re.fullmatch(r"[usb]\d+|(?:bf16|f16)(?:x2)?|t?f\d+|e\dm\dx2", m)
    ]
    found = "" if name in moves or not types else types[0]
    return "f32" if found == "tf32" else found


def lane_cases() -> Iterator[Case]:
    """One case per form, in the order of the table, then one per line of `lines`."""
    first = dict.fromkeys((*accepted(), *MORE))
    for instruction in {**first, **dict.fromkeys(more_lines())}:
        approximate = bound_of(instruction) is not None
        threads = FEW_THREADS if approximate or instruction not in first else THREADS
        if instruction.split(".")[0] in ("shfl", "vote", "match", "redux"):
            threads = 128
        if cell_space(instruction):
            threads = MEMORY_THREADS
        sources = operands(instruction, threads)
        yield Case(
            f"lanes/{instruction}",
            kernel_name(instruction),
            threads,
            np.concatenate(sources).astype(np.uint64).tobytes(),
            out_bytes(instruction, threads),
            probe=approximate,
            ptx=one_instruction(instruction),
            nan_type=nan_type(instruction),
        )


def accepted() -> list[str]:
    """Return the lines of the table of accepted forms that compute something in registers alone."""
    found, section = [], ""
    for line in ACCEPTED.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and line[0] != "#" and section in SECTIONS:
            instruction = line.partition(" -> ")[0]
            computes = results(instruction) or cell_space(instruction)
            if computes and not re.search(NOT_HERE, instruction):
                found.append(instruction)
    return found


def outside_bound(case: Case, output: NDArray[np.uint8]) -> list[str]:
    """Return what lies further from the exact value than the bound of an approximation, in words.

    Where the exact value is infinite, zero or not a number, the result must be so too. Where it is subnormal, `.ftz`
    makes it zero. Operands for which the PTX ISA states no bound are left out.
    """
    instruction = case.name.partition("/")[2]
    bound, kind = bound_of(instruction), case.nan_type
    assert bound is not None
    pair, flush = instruction.split()[0].endswith("x2"), ".ftz" in instruction
    count = 2 if len(re.findall(r"[ab]\d\d", instruction)) == 2 else 1
    raw = np.frombuffer(case.input, np.uint64).reshape(4, case.threads)[:count]
    sources = [float_values(np.ascontiguousarray(words), kind, pair, flush) for words in raw]
    if ".approx.ftz.f64" in instruction:  # only the upper half is read
        sources = [float_values(raw[0] & np.uint64(0xFFFFFFFF00000000), kind, pair, flush)]
    found = float_values(output, kind, pair, False)
    with np.errstate(all="ignore"):
        exact = bound.function(*sources)
        unit = units(exact, kind)
        least = LEAST_NORMAL[kind]
        allowed = bound.relative * np.abs(exact) + bound.absolute + (bound.ulps + 0.5) * unit
        allowed = np.where(np.abs(exact) < 2 * least, allowed + (2 * least if flush else 2 * unit), allowed)
        error = np.abs(found - exact)
    last = np.abs(sources[-1])
    stated = (
        (last >= bound.inputs[0]) & (last <= bound.inputs[1]) if np.isfinite(bound.inputs[1]) else np.isfinite(last)
    )
    overflow = np.abs(exact) >= GREATEST[kind] * (1 - 2.0**-6)
    special = ~np.isfinite(exact)
    same = np.where(np.isnan(exact), np.isnan(found), found == exact)
    good = np.where(special, same, (error <= allowed) | overflow) | ~stated & ~special
    return [
        f"{instruction}: {[float(s[i]) for s in sources]} gave {found[i]}, exactly {exact[i]}"
        for i in np.flatnonzero(~good)[:5]
    ]


LEAST_NORMAL = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126, "f64": 2.0**-1022}
GREATEST = {"f16": 65504.0, "bf16": 2.0**128, "f32": 2.0**128, "f64": float(np.finfo(np.float64).max)}
MANTISSA_BITS = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}


def units(exact: NDArray[np.float64], kind: str) -> NDArray[np.float64]:
    """Return one unit in the last place of the type at a value."""
    magnitude = np.clip(np.nan_to_num(np.abs(exact), posinf=1.0), LEAST_NORMAL[kind], GREATEST[kind])
    return 2.0 ** (np.frexp(magnitude)[1] - 1.0 - MANTISSA_BITS[kind])


def float_values(data: NDArray[np.generic], kind: str, pair: bool, flush: bool) -> NDArray[np.float64]:
    """Return operands (64 bits per thread) or results as float64; both halves of a pair."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return _float_values(data, kind, pair, flush)


def _float_values(data: NDArray[np.generic], kind: str, pair: bool, flush: bool) -> NDArray[np.float64]:
    words = data.view(np.uint64) if data.dtype == np.uint64 else None
    if kind == "f64":
        values = data.view(np.float64).copy()
    elif kind == "f32":
        bits = words.astype(np.uint32) if words is not None else data.view(np.uint32)
        values = bits.view(np.float32).astype(np.float64)
    else:
        if words is not None:
            halves = words.view(np.uint16).reshape(-1, 4)[:, : 2 if pair else 1].reshape(-1)
        else:
            halves = data.view(np.uint16)
        wide = halves.astype(np.uint32) << 16
        values = (wide.view(np.float32) if kind == "bf16" else halves.view(np.float16)).astype(np.float64)
    if flush:
        values = np.where(np.abs(values) < LEAST_NORMAL[kind], np.copysign(0.0, values), values)
    return values


# ---- operands

INTEGER_EDGES = (0, 1, 2, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 128, 255, 256)


def edges(bits: int) -> list[int]:
    """Return bit patterns at which something changes, as an integer and as a float of that width."""
    exponent, mantissa = {16: (5, 10), 32: (8, 23), 64: (11, 52)}[bits]
    top, bias = 1 << bits - 1, (1 << exponent - 1) - 1
    one, infinity = bias << mantissa, ((1 << exponent) - 1) << mantissa
    patterns = [*INTEGER_EDGES, top - 1, top, 2 * top - 1, one, one | top, one + 1, one | 1 << mantissa - 1]
    patterns += [1 << mantissa, (1 << mantissa) - 1, infinity, infinity | top, infinity | 1 << mantissa - 1]
    patterns += [infinity - 1, infinity + 1, bias + mantissa << mantissa, bias + bits - 1 << mantissa]
    if bits == 16:  # and as a bf16: one, infinity, NaN, least normal
        patterns += [0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0x0080]
    return patterns


def operands(instruction: str, threads: int) -> list[NDArray[np.uint64]]:
    """Return the values of a, b, c, e per thread, the same in every run: edges against edges, then any bits."""
    seed = int.from_bytes(instruction.encode()[:64], "little") % 2**63
    random = np.random.default_rng(seed)
    width = max((int(w) for w in re.findall(r"(?<![\w%.])[abce](16|32|64)(?!\w)", instruction)), default=32)
    values = [random.integers(0, 2**64, threads, dtype=np.uint64) for _ in "abce"]
    known = np.array(edges(width), np.uint64)
    pairs = [(x, y) for x in known for y in known]
    chosen = np.linspace(0, len(pairs) - 1, min(len(pairs), threads * 5 // 8)).astype(int)
    for place, index in enumerate(chosen):
        values[0][place], values[1][place] = pairs[index]
        values[2][place] = known[index % 7 * len(known) // 7]
        values[3][place] = known[(index // 3) % len(known)]
    if width == 32 and re.search(r"\.(?:bf16|f16)x2|\.e\dm\dx2", instruction):  # edges of both halves
        halves = np.array(edges(16), np.uint64)
        for operand in values:
            operand[: len(chosen)] = random.choice(halves, len(chosen)) << np.uint64(16) | random.choice(
                halves, len(chosen)
            )
    moderate = slice(len(chosen), len(chosen) + (threads - len(chosen)) // 2)
    for operand in values:
        operand[moderate] = moderate_floats(instruction, operand[moderate])
    return restricted(instruction, values)


def moderate_floats(instruction: str, bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the same bits with an exponent near one, where the operands are floats: sums then round and cancel."""
    types = set(instruction.split()[0].split("."))
    if types & {"f64"}:
        return bits & np.uint64(~(0x7FF << 52) & 2**64 - 1) | (
            np.uint64(1018) + (bits >> 52) % np.uint64(9)
        ) << np.uint64(52)
    if types & {"f32", "tf32"}:
        return bits & np.uint64(0x807FFFFF) | (np.uint64(122) + (bits >> 23) % np.uint64(9)) << np.uint64(23)
    if types & {"f16", "f16x2"}:
        low = bits & np.uint64(0x83FF) | (np.uint64(12) + (bits >> 10) % np.uint64(7)) << np.uint64(10)
        return low | low << np.uint64(16)
    if types & {"bf16", "bf16x2"}:
        low = bits & np.uint64(0x807F) | (np.uint64(122) + (bits >> 7) % np.uint64(9)) << np.uint64(7)
        return low | low << np.uint64(16)
    return bits


def restricted(instruction: str, values: list[NDArray[np.uint64]]) -> list[NDArray[np.uint64]]:
    """Keep operands where the PTX ISA says what comes out."""
    name, kind = instruction.split(".")[0], instruction.split()[0].split(".")[-1]
    a, b, c, e = values
    if name in ("div", "rem") and kind[0] in "us":  # by zero, and the least number by −1: unspecified
        width = np.uint64(2 ** int(kind[1:]) - 1)
        b = np.where(np.isin(b & width, (0, width)), np.uint64(3), b)
    if name in ("mul24", "mad24"):
        limit = np.uint64(0x7FFFFF)
        a, b = a & limit, b & limit
    if name == "fns":
        b, c = b % np.uint64(32), (c % np.uint64(65) + np.uint64(2**32 - 32)) % np.uint64(2**32)
    if ".pack." in instruction:
        a, b = near_limits(a, kind_of_pack(instruction)), near_limits(b, kind_of_pack(instruction))
    if name == "shfl":
        c = c & np.uint64(0x1F1F)
    if name in ("shfl", "vote", "match", "redux"):
        e = np.full_like(e, FULL_MASK)
    if name == "match":
        a = a % np.uint64(3)
    return [a, b, c, e]


def kind_of_pack(instruction: str) -> str:
    """Return the type to which `cvt.pack` limits, such as `u8`."""
    return instruction.split(".")[3]


def near_limits(values: NDArray[np.uint64], kind: str) -> NDArray[np.uint64]:
    """Return signed words of every magnitude, and among them the ends of an integer type and their neighbours."""
    bits, low = int(kind[1:]), -(1 << int(kind[1:]) - 1) if kind[0] == "s" else 0
    found = values.astype(np.uint32).view(np.int32).astype(np.int64) >> (np.arange(len(values)) * 7 % 32)
    ends = np.array([end + step for end in (low, low + (1 << bits) - 1, 0) for step in (-2, -1, 0, 1, 2)])
    chosen = values % np.uint64(3) == 0
    found[chosen] = ends[(values[chosen] >> np.uint64(8)) % np.uint64(len(ends))]
    return (found & 0xFFFFFFFF).astype(np.uint64)
