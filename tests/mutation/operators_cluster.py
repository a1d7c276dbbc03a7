"""Mutation operators on clusters, pairs of CTAs and memory order: who signals whom, who is told, what is handed on."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.mutation.operators import (
    ADDRESS,
    ARRIVE,
    COMMIT,
    INIT,
    LAST_ADDRESS,
    LOAD,
    READ_SUMS,
    TMEM,
    WAIT,
    Edit,
    Operator,
    drop,
    operand,
    plus,
    rewrite,
)
from tests.mutation.operators_tcgen05 import IDESC, MMA, TOUCH
from tests.mutation.sites import KernelText, Statement

CLUSTER_ARRIVE = r"barrier\.cluster\.arrive"
CLUSTER_WAIT = r"barrier\.cluster\.wait"
OF_PAIRS = r"(?=.*\.cta_group::2)"
REMOTE = r"(?=.*\.shared::cluster)"
_MASK = r"\],\s*(%rs\d+);"
# Bit 24 of a shared address tells the CTAs of a pair apart, as the kernels use it: set it again in the odd CTA.
_OWN = (
    ".reg .b32 rank; mov.u32 rank, %cluster_ctarank; and.b32 rank, rank, 1; shl.b32 rank, rank, 24; "
    "or.b32 {new}, {old}, rank"
)


def _drop_sync(kernel: KernelText, statement: Statement) -> dict[int, str] | None:
    """Remove an arrival at the cluster's barrier and the wait that belongs to it."""
    wait = kernel.following(statement, CLUSTER_WAIT)
    return {statement.index: "", wait.index: ""} if wait is not None else None


def _word(old: str, new: str) -> Edit:
    return rewrite(re.escape(old), lambda _: new)


def _relaxed(name: str, ordered: str) -> Edit:
    """Give an operation on an mbarrier no order: `ordered` is what it is without a word, at the scope of its CTA."""
    return rewrite(rf"({name})(?:\.{ordered}(\.\w+))?", lambda m: f"{m[1]}.relaxed{m[2] or '.cta'}")


def _orders() -> Iterator[Operator]:
    yield Operator("drop.warp_sync", r"bar\.warp\.sync", drop, after=(ARRIVE, READ_SUMS, LOAD), every=WAIT)
    told = f"{INIT}|{TMEM}|{TOUCH}|{ARRIVE}|{COMMIT}|{LOAD}|{WAIT}"
    yield Operator("drop.cluster_sync", CLUSTER_ARRIVE, _drop_sync, every=told)
    yield Operator("drop.cluster_arrive", CLUSTER_ARRIVE, drop, every=CLUSTER_WAIT)
    yield Operator("drop.cluster_wait", CLUSTER_WAIT, drop, every=f"{CLUSTER_ARRIVE}|{told}")
    yield Operator("relaxed.cluster_arrive", CLUSTER_ARRIVE, _word(".release", ".relaxed"), every=told)
    used = f"{LOAD}|{MMA}|{READ_SUMS}|{COMMIT}|wgmma|ld\\.shared|st\\.shared::cluster"
    yield Operator("relaxed.arrive", ARRIVE, _relaxed(r"mbarrier\.arrive", "release"), every=f"{WAIT}|{used}")
    wait = _relaxed(r"mbarrier\.(?:try|test)_wait\.parity", "acquire")
    yield Operator("relaxed.wait", WAIT, wait, every=f"{ARRIVE}|{used}|st|ld")


def _pairs() -> Iterator[Operator]:
    every = f"{TOUCH}|{COMMIT}|{WAIT}"
    load = _word(".cta_group::2", "")  # other instructions without it are refused by ptxas: all of a kernel must agree
    yield Operator("pair.load_alone", f"{OF_PAIRS}(?:{LOAD})", load, every=WAIT, detail="no cta_group")
    own = operand(LAST_ADDRESS, 32, _OWN)
    yield Operator("pair.signal_own", f"{OF_PAIRS}(?:{LOAD})", own, every=WAIT, detail="signals the own CTA's barrier")
    arrive = operand(ADDRESS, 32, _OWN)
    yield Operator("pair.arrive_own", REMOTE + ARRIVE, arrive, every=every, detail="at the own CTA's barrier")
    only = operand(_MASK, 16, "and.b16 {new}, {old}, 1")
    yield Operator("pair.mask_leader", COMMIT, only, every=WAIT, detail="tells the even CTA alone")
    other = operand(_MASK, 16, "and.b16 {new}, {old}, 2")
    yield Operator("pair.mask_other", COMMIT, other, every=WAIT, detail="tells the odd CTA alone")
    beyond = operand(_MASK, 16, "or.b16 {new}, {old}, 4")
    yield Operator("pair.mask_beyond", COMMIT, beyond, detail="tells a third CTA")
    half = operand(IDESC, 32, f"xor.b32 {{new}}, {{old}}, {24 << 24}")
    yield Operator("pair.m", OF_PAIRS + MMA, half, every=READ_SUMS, detail="M 128 instead of 256")
    next_lanes = plus(ADDRESS, 64 << 16)
    yield Operator("pair.lane", OF_PAIRS + MMA, next_lanes, every=TOUCH, detail="lane + 64")


def cluster_operators() -> tuple[Operator, ...]:
    """Return the operators on clusters, pairs of CTAs and memory order."""
    return (*_orders(), *_pairs())
