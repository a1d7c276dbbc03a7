"""Attention kernels as numpy functions: honest ones that round and order their sums in many ways, and faulty ones.

Tensors are float32 [B, H, S, D] that hold BF16 values. Each kernel returns float32 outputs by name; what reaches memory
is rounded by `stored`. A fault is a change of one thing in a kernel that is right without it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxgym.judge import numbers
from ptxgym.judge.numbers import round_bf16

Arrays = dict[str, Any]
LOG2_E = np.float32(math.log2(math.e))
TILE = range(64, 128)


def exp2_cubic(x: Any) -> Any:
    """2ˣ by a polynomial of degree three for the fraction, relative error 1e-4, as some Blackwell kernels do."""
    whole = np.floor(np.maximum(x, -126))
    fraction = x - whole
    points = np.cos(np.pi * (np.arange(4) + 0.5) / 4) / 2 + 0.5
    cubic = np.polynomial.Polynomial.fit(points, 2.0**points, 3)
    return np.where(np.isfinite(x), np.ldexp(cubic(fraction), whole.astype(int)), 0).astype(np.float32)


@dataclass(frozen=True)
class Style:
    """How a kernel sums and rounds; every combination is honest."""

    block: int = 64
    """Keys (forward) or queries and keys (backward) of a step."""
    backwards: bool = False
    rounded: bool = True
    """P and dS to BF16."""
    exp2: Callable[[Any], Any] = np.exp2
    pre_scaled: bool = True
    """Scores are scaled by log2(e)/√D at once, or first by 1/√D."""
    normalised: bool = False
    """Forward: P is divided by its sum before it is rounded."""
    sum_rounded: bool = False
    """Forward: LSE and the divisor sum P as rounded."""
    slack: float = 0.0
    """Forward: accumulators are rescaled only when the maximum grows by more than this power of two."""
    scaled_ds: bool = False
    """Backward: dS is multiplied by 1/√D before it is rounded."""

    def to_p(self, values: Any) -> Any:
        return round_bf16(values) if self.rounded else values

    def steps(self, size: int) -> list[slice]:
        found = [slice(start, min(start + self.block, size)) for start in range(0, size, self.block)]
        return found[::-1] if self.backwards else found


@dataclass(frozen=True)
class Fault:
    """One thing that a kernel does wrong."""

    scale: float = 1.0
    """Factor on what scores are multiplied by, in units of 1/√D."""
    hidden_keys: range = range(0)
    twice: range = range(0)
    mask: Callable[[Any, Any], Any] | None = None
    """(query index, key index) → whether hidden, in place of the task's own mask."""
    rescale: bool = True
    subtract_maximum: bool = True
    round_scores: bool = False
    round_sums: bool = False
    divide: range = range(0)
    """Rows that are not divided by their sum."""
    inputs: Callable[[Arrays], Arrays] | None = None
    outputs: Callable[[Arrays, Arrays], Arrays] | None = None
    """(outputs, inputs) → outputs."""
    delta: Callable[[Arrays], Any] | None = None
    ds: Callable[[Any, Any, Any], Any] | None = None
    """(P, dP, delta) → dS."""
    dropped_queries: tuple[tuple[str, range], ...] = ()
    """Backward: queries that the sum of an output lacks."""
    dropped_keys: range = range(0)
    """Backward: keys that dQ lacks."""
    wrong_p: Callable[[Any], Any] | None = None
    block: int = 64


RIGHT = Fault()


def hidden(size: int, causal: bool, fault: Fault) -> Any:
    """Return which (query, key) pairs a kernel leaves out."""
    query, key = np.arange(size)[:, None], np.arange(size)[None, :]
    if fault.mask is not None:
        left_out = np.broadcast_to(fault.mask(query, key), (size, size)).copy()
    else:
        left_out = key > query if causal else np.zeros((size, size), np.bool_)
    left_out[:, fault.hidden_keys] = True
    return left_out


def scores_of(query: Any, key: Any, style: Style, fault: Fault) -> Any:
    """Return scores times log2(e), the exponents of two."""
    factor = np.float32(fault.scale / math.sqrt(query.shape[-1]))
    raw = query @ key.swapaxes(-1, -2)
    found = raw * (factor * LOG2_E) if style.pre_scaled else raw * factor * LOG2_E
    return round_bf16(found) if fault.round_scores else found


def forward(inputs: Mapping[str, Any], causal: bool, style: Style = Style(), fault: Fault = RIGHT) -> Arrays:
    """Online softmax over blocks of keys, all queries at once."""
    given = dict(inputs) if fault.inputs is None else fault.inputs(dict(inputs))
    query, key, value = (given[name] for name in "QKV")
    left_out = hidden(query.shape[2], causal, fault)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        maximum = np.full((*query.shape[:3], 1), -np.inf, np.float32)
        if not fault.subtract_maximum:
            maximum[:] = 0
        total, output = np.zeros_like(maximum), np.zeros_like(query)
        if style.normalised:
            exponents = np.where(left_out, -np.inf, scores_of(query, key, style, fault)).astype(np.float32)
            maximum = exponents.max(axis=-1, keepdims=True)
            total = np.exp2(exponents - maximum).sum(axis=-1, keepdims=True)
        for step in style.steps(key.shape[2]):
            exponents = scores_of(query, key[:, :, step], style, fault)
            exponents[:, :, left_out[:, step]] = -np.inf
            if style.normalised:
                output += style.to_p(style.exp2(exponents - maximum) / total) @ value[:, :, step]
                continue
            grown = np.maximum(maximum, exponents.max(axis=-1, keepdims=True))
            grown = np.where(grown > maximum + style.slack, grown, maximum) if fault.subtract_maximum else maximum
            shrink = np.where(np.isfinite(maximum), np.exp2(maximum - grown), 0).astype(np.float32)
            p = style.exp2(exponents - np.where(np.isfinite(grown), grown, 0))
            weight = np.float32(2 if range(step.start, step.stop) == fault.twice else 1)
            total = total * shrink + weight * (style.to_p(p) if style.sum_rounded else p).sum(axis=-1, keepdims=True)
            output *= shrink if fault.rescale else 1
            output += weight * style.to_p(p) @ value[:, :, step]
            output = round_bf16(output) if fault.round_sums else output
            maximum = grown
        divisor = np.ones_like(total) if style.normalised else total.copy()
        divisor[:, :, fault.divide] = 1
        found = {"O": output / divisor, "LSE": ((maximum + np.log2(total)) / LOG2_E)[..., 0]}
    return found if fault.outputs is None else fault.outputs(found, given)


@np.errstate(over="ignore", invalid="ignore")
def backward(inputs: Mapping[str, Any], causal: bool, style: Style = Style(), fault: Fault = RIGHT) -> Arrays:
    """Two passes as kernels make them: dK and dV sum over blocks of queries, dQ over blocks of keys."""
    given = dict(inputs) if fault.inputs is None else fault.inputs(dict(inputs))
    query, key, value, output, gradient, lse = (given[name] for name in ("Q", "K", "V", "O", "dO", "LSE"))
    left_out = hidden(query.shape[2], causal, fault)
    factor = np.float32(1 / math.sqrt(query.shape[-1]))
    delta = (gradient * output).sum(axis=-1, keepdims=True) if fault.delta is None else fault.delta(given)
    found = {name: np.zeros_like(query) for name in ("dQ", "dK", "dV")}
    dropped = dict(fault.dropped_queries)
    inner = np.float32(1) if not style.scaled_ds else factor

    def product(queries: slice, keys: slice) -> tuple[Any, Any]:
        exponents = scores_of(query[:, :, queries], key[:, :, keys], style, fault)
        exponents -= (lse * LOG2_E)[:, :, queries, None]
        p = style.exp2(exponents)
        p[:, :, left_out[queries, keys]] = 0
        p = p if fault.wrong_p is None else fault.wrong_p(p)
        dp = gradient[:, :, queries] @ value[:, :, keys].swapaxes(-1, -2)
        own = delta[:, :, queries]
        ds = p * (dp - own) if fault.ds is None else fault.ds(p, dp, own)
        return style.to_p(p), style.to_p(ds * inner)

    whole = slice(0, query.shape[2])
    for step in style.steps(query.shape[2]):
        p, ds = product(step, whole)
        for name, left, right in (("dV", p, gradient[:, :, step]), ("dK", ds, query[:, :, step])):
            left = left.copy()
            if name in dropped:
                inside = np.arange(step.start, step.stop)
                left[:, :, np.isin(inside, dropped[name])] = 0
            found[name] += left.swapaxes(-1, -2) @ right
        if fault.round_sums:
            found = {name: round_bf16(sums) for name, sums in found.items()}
    for step in style.steps(query.shape[2]):
        _, ds = product(whole, step)
        inside = np.arange(step.start, step.stop)
        ds[..., np.isin(inside, fault.dropped_keys)] = 0
        found["dQ"] += ds @ key[:, :, step]
        found["dQ"] = round_bf16(found["dQ"]) if fault.round_sums else found["dQ"]
    if not style.scaled_ds:
        found["dQ"] *= factor
        found["dK"] *= factor
    return found if fault.outputs is None else fault.outputs(found, given)


def stored(values: Any, dtype: str) -> Any:
    """Return device bytes."""
    return numbers.encode(np.asarray(values, np.float32), dtype)  # type: ignore[arg-type]


HONEST = {
    "FP32 all along": Style(rounded=False, pre_scaled=False),
    "BF16 P, blocks of 64": Style(),
    "BF16 P, blocks of 128": Style(block=128),
    "blocks in reverse": Style(backwards=True),
    "scaled first, then log2(e)": Style(pre_scaled=False, block=128, backwards=True),
    "exp2 by a cubic": Style(exp2=exp2_cubic, block=128),
}
HONEST_FORWARD = {
    **HONEST,
    "P normalised before it is rounded": Style(normalised=True),
    "P summed as rounded": Style(sum_rounded=True, block=128),
    "rescaled only beyond 2⁸": Style(slack=8.0, block=128),
}
HONEST_BACKWARD = {
    **HONEST,
    "dS scaled before it is rounded": Style(scaled_ds=True),
    "dS scaled before it is rounded, blocks of 128": Style(scaled_ds=True, block=128, backwards=True),
}


def swapped(one: str, other: str, arrays: Arrays) -> Arrays:
    return {**arrays, one: arrays[other], other: arrays[one]}


def multiplied(factors: Mapping[str, float], found: Arrays, _: Arrays) -> Arrays:
    return {name: values * np.float32(factors.get(name, 1.0)) for name, values in found.items()}


def added(terms: Mapping[str, float], found: Arrays, _: Arrays) -> Arrays:
    return {name: values + np.float32(terms.get(name, 0.0)) for name, values in found.items()}


def stale_tile(name: str, found: Arrays, _: Arrays) -> Arrays:
    """One tile of rows holds what belongs to the rows before."""
    changed = found[name].copy()
    changed[0, 0, TILE] = changed[0, 0, :64]
    return {**found, name: changed}


def transposed_tile(name: str, found: Arrays, _: Arrays) -> Arrays:
    changed = found[name].copy()
    changed[0, 0, TILE, :64] = changed[0, 0, TILE, :64].swapaxes(-1, -2).copy()
    return {**found, name: changed}


def unwritten_tile(name: str, found: Arrays, _: Arrays) -> Arrays:
    changed = found[name].copy()
    changed[-1, -1, TILE] = 0
    return {**found, name: changed}


def cut(name: str, found: Arrays, _: Arrays) -> Arrays:
    """Rounded toward zero."""
    bits = np.ascontiguousarray(found[name], np.float32).view(np.uint32) >> 16
    return {**found, name: numbers.bf16_values(bits.astype(np.uint16))}


def other_head(name: str, given: Arrays) -> Arrays:
    """One tensor is read at the next head (or batch)."""
    flat = given[name].reshape(-1, *given[name].shape[2:])
    return {**given, name: np.roll(flat, 1, axis=0).reshape(given[name].shape)}


def in_fp16(names: str, given: Arrays) -> Arrays:
    half = {name: given[name].astype(np.float16).astype(np.float32) for name in names.split()}
    return {**given, **half}


def lse_without_scale(found: Arrays, given: Arrays) -> Arrays:
    width = given["Q"].shape[-1]
    plain = forward({**given, "Q": given["Q"] * np.float32(math.sqrt(width))}, False, Style(rounded=False))
    return {**found, "LSE": plain["LSE"]}


def lse_without_maximum(found: Arrays, given: Arrays) -> Arrays:
    scores = given["Q"] @ given["K"].swapaxes(-1, -2) / np.float32(math.sqrt(given["Q"].shape[-1]))
    return {**found, "LSE": found["LSE"] - scores.max(axis=-1)}


def one_row_on(name: str, found: Arrays, _: Arrays) -> Arrays:
    return {**found, name: np.roll(found[name], 1, axis=2)}


def of(function: Callable[..., Any], *first: Any) -> Callable[..., Any]:
    return functools.partial(function, *first)


ANY_MASK = {
    "a key dropped": Fault(hidden_keys=range(5, 6)),
    "a tile of keys dropped": Fault(hidden_keys=TILE),
    "no scale": Fault(scale=math.sqrt(128)),
    "scaled twice": Fault(scale=1 / math.sqrt(128)),
    "scale off by 1 %": Fault(scale=1.01),
    "scores rounded to BF16": Fault(round_scores=True),
    "K and V exchanged": Fault(inputs=of(swapped, "K", "V")),
    "Q and K exchanged": Fault(inputs=of(swapped, "Q", "K")),
    "V of another head": Fault(inputs=of(other_head, "V")),
    "K of another head": Fault(inputs=of(other_head, "K")),
    "sums rounded to BF16 each 16 terms": Fault(round_sums=True, block=16),
    "sums rounded to BF16 each 64 terms": Fault(round_sums=True),
}
FULL_MASK = {
    "the last key dropped": Fault(hidden_keys=range(-1, 0)),
    "a causal mask": Fault(mask=lambda query, key: key > query),
    "a diagonal left out": Fault(mask=lambda query, key: key == query),
    "sums rounded to BF16 each 128 terms": Fault(round_sums=True, block=128),
}
CAUSAL_MASK = {
    "no mask": Fault(mask=lambda query, key: key < 0),
    "mask shifted by one": Fault(mask=lambda query, key: key > query + 1),
    "diagonal hidden, too": Fault(mask=lambda query, key: (key >= query) & (key > 0)),
    "whole tiles of the diagonal seen": Fault(mask=lambda query, key: key // 64 > query // 64),
    "mask turned round": Fault(mask=lambda query, key: key < query),
}
FORWARD_FAULTS = {
    **ANY_MASK,
    "gain of 1 %": Fault(outputs=of(multiplied, {"O": 1.01})),
    "gain of 0.6 %": Fault(outputs=of(multiplied, {"O": 1.006})),
    "a tile of keys counted twice": Fault(twice=TILE),
    "no rescaling when the maximum grows": Fault(rescale=False),
    "maximum not subtracted": Fault(subtract_maximum=False),
    "one tile not divided by its sum": Fault(divide=TILE),
    "a stale tile of O": Fault(outputs=of(stale_tile, "O")),
    "a stale tile of LSE": Fault(outputs=of(stale_tile, "LSE")),
    "a transposed tile": Fault(outputs=of(transposed_tile, "O")),
    "a tile left at zero": Fault(outputs=of(unwritten_tile, "O")),
    "O rounded toward zero": Fault(outputs=of(cut, "O")),
    "V in FP16": Fault(inputs=of(in_fp16, "V")),
    "LSE in base 2": Fault(outputs=of(multiplied, {"LSE": float(LOG2_E)})),
    "LSE of scores without scale": Fault(outputs=lse_without_scale),
    "LSE without the maximum": Fault(outputs=lse_without_maximum),
    "LSE off by 0.002": Fault(outputs=of(added, {"LSE": 0.002})),
    "LSE of the row before": Fault(outputs=of(one_row_on, "LSE")),
    "LSE rounded to BF16": Fault(outputs=lambda found, _: {**found, "LSE": round_bf16(found["LSE"])}),
}
BACKWARD_FAULTS = {
    **ANY_MASK,
    **{f"gain of 1 % in {name}": Fault(outputs=of(multiplied, {name: 1.01})) for name in ("dQ", "dK", "dV")},
    "dQ without scale": Fault(outputs=of(multiplied, {"dQ": math.sqrt(128)})),
    "dK scaled twice": Fault(outputs=of(multiplied, {"dK": 1 / math.sqrt(128)})),
    "no delta": Fault(delta=lambda given: np.zeros_like(given["LSE"])[..., None]),
    "delta added": Fault(ds=lambda p, dp, delta: p * (dp + delta)),
    "delta of the row before": Fault(
        delta=lambda given: np.roll((given["dO"] * given["O"]).sum(axis=-1, keepdims=True), 1, axis=2)
    ),
    "dS without P": Fault(ds=lambda p, dp, delta: np.where(p > 0, dp - delta, 0)),
    "LSE taken as base 2": Fault(inputs=lambda given: {**given, "LSE": given["LSE"] / LOG2_E}),
    "LSE of the row before": Fault(inputs=lambda given: {**given, "LSE": np.roll(given["LSE"], 1, axis=2)}),
    "P not normalised in one tile": Fault(wrong_p=lambda p: _louder(p)),
    "dK lacks a tile of queries": Fault(dropped_queries=(("dK", TILE),)),
    "dV lacks a tile of queries": Fault(dropped_queries=(("dV", TILE),)),
    "dV lacks one query": Fault(dropped_queries=(("dV", range(77, 78)),)),
    "dQ lacks a tile of keys": Fault(dropped_keys=TILE),
    "dQ lacks one key": Fault(dropped_keys=range(3, 4)),
    "a stale tile of dQ": Fault(outputs=of(stale_tile, "dQ")),
    "a stale tile of dK": Fault(outputs=of(stale_tile, "dK")),
    "a transposed tile of dV": Fault(outputs=of(transposed_tile, "dV")),
    "a transposed tile of dK": Fault(outputs=of(transposed_tile, "dK")),
    "a tile of dV left at zero": Fault(outputs=of(unwritten_tile, "dV")),
    "dK and dV exchanged": Fault(outputs=lambda found, _: swapped("dK", "dV", found)),
    "dO of another head": Fault(inputs=of(other_head, "dO")),
    "V and dO in FP16": Fault(inputs=of(in_fp16, "V dO")),
    "dS in FP16": Fault(ds=lambda p, dp, delta: (p * (dp - delta)).astype(np.float16).astype(np.float32)),
}


def _louder(p: Any) -> Any:
    """P of the first rows of each block, times 1.5."""
    changed = p.copy()
    changed[:, :, :16] *= np.float32(1.5)
    return changed


def faults(name: str) -> dict[str, Fault]:
    """Return the faults of a task."""
    of_direction = FORWARD_FAULTS if "fwd" in name else BACKWARD_FAULTS
    return {**of_direction, **(CAUSAL_MASK if name.endswith("causal") else FULL_MASK)}


def honest(name: str) -> dict[str, Style]:
    """Return the honest styles of a task."""
    return HONEST_FORWARD if "fwd" in name else HONEST_BACKWARD


def kernel(name: str) -> Callable[..., Arrays]:
    """Return the task's kernel: (inputs, style=, fault=) → outputs."""
    function = forward if "fwd" in name else backward

    def run(inputs: Mapping[str, Any], style: Style = Style(), fault: Fault = RIGHT) -> Arrays:
        style = style if fault is RIGHT else dataclasses.replace(style, block=fault.block)
        return function(inputs, name.endswith("causal"), style, fault)

    return run
