# ruff: noqa: E501  (PTX text is not broken where a reader would not break it)
"""Divergence, reconvergence, independent threads, and exchanges between lanes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgym.device.emulator.core import Outcome
from tests.device.emulator.core.harness import Run, apply, kernel, program, run

FULL = 0xFFFFFFFF
STORE = "mul.wide.u32 %rd9, %r3, 4; add.s64 %rd9, %rd0, %rd9; st.global.u32 [%rd9], %r20;"


def lanes(body: str, *, block: int = 32, **shape: object) -> np.ndarray:
    """Run `body`, which leaves a result in %r20, and return it per thread."""
    done = run(kernel(f"{body}\n{STORE}"), {"out": np.zeros(block, "<u4")}, block=block, **shape)
    assert done.launch.outcome == 0, done.records
    return done.words()


def test_lanes_of_nested_branches_come_together_again() -> None:
    body = """
      and.b32 %r10, %r0, 1; setp.eq.u32 %p1, %r10, 0; and.b32 %r11, %r0, 2; setp.eq.u32 %p2, %r11, 0;
      mov.u32 %r20, 0;
      @%p1 bra EVEN;
      add.u32 %r20, %r20, 1;
      @%p2 bra JOIN;
      add.u32 %r20, %r20, 10;
      bra JOIN;
    EVEN:
      add.u32 %r20, %r20, 100;
    JOIN:
      add.u32 %r20, %r20, 1000;
    """
    want = [1000 + (100 if t % 2 == 0 else 1 if t & 2 == 0 else 11) for t in range(32)]
    assert lanes(body).tolist() == want
    text = kernel(f"{body}\n{STORE}")
    done = run(text, {"out": np.zeros(32, "<u4")})
    at = [i for i, f in enumerate(program(text).decoded.forms) if f == "add.u32"]
    assert done.launch.warp_counts[at[-1]] == 1, "the warp is whole again after the branches"
    assert done.launch.thread_counts[at].tolist() == [16, 8, 16, 32]


def test_loops_of_different_length() -> None:
    body = "mov.u32 %r20, 0; mov.u32 %r10, %r0;\nL: add.u32 %r20, %r20, %r10; sub.u32 %r10, %r10, 1; setp.gt.s32 %p1, %r10, 0; @%p1 bra L;"
    want = [sum(range(t + 1)) if t else 0 for t in range(32)]
    assert lanes(body).tolist() == want


def test_predicated_instructions_leave_other_lanes_alone() -> None:
    body = "mov.u32 %r20, 7; setp.lt.u32 %p1, %r0, 5; @%p1 mov.u32 %r20, 1; @!%p1 add.u32 %r20, %r20, 1;"
    assert lanes(body).tolist() == [1] * 5 + [8] * 27


def test_a_thread_that_spins_for_its_warp_mate_makes_progress() -> None:
    """Lane 0 waits at the lowest program counter for a flag that lane 1 sets further on."""
    body = """
      setp.eq.u32 %p1, %r0, 0; mov.u32 %r20, 5;
      @!%p1 bra SETTER;
    SPIN:
      ld.volatile.global.u32 %r20, [%rd1]; setp.eq.u32 %p2, %r20, 0; @%p2 bra SPIN;
      bra DONE;
    SETTER:
      setp.eq.u32 %p3, %r0, 1; mov.u32 %r10, 77;
      @%p3 st.volatile.global.u32 [%rd1], %r10;
    DONE:
    """
    done = run(kernel(f"{body}\n{STORE}"), {"out": np.zeros(32, "<u4"), "flag": np.zeros(4, "<u4")})
    assert done.launch.outcome == 0, done.records
    assert done.words()[:3].tolist() == [77, 5, 5]


def test_a_lock_among_the_lanes_of_a_warp() -> None:
    body = """
    RETRY:
      atom.global.cas.b32 %r10, [%rd1], 0, 1; setp.ne.u32 %p1, %r10, 0;
      @%p1 bra RETRY;
      ld.volatile.global.u32 %r20, [%rd1+4]; add.u32 %r11, %r20, 1; st.volatile.global.u32 [%rd1+4], %r11;
      atom.global.exch.b32 %r12, [%rd1], 0;
    """
    done = run(kernel(f"{body}\n{STORE}"), {"out": np.zeros(64, "<u4"), "lock": np.zeros(4, "<u4")}, block=64)
    assert done.launch.outcome == 0, done.records
    assert sorted(done.words().tolist()) == list(range(64))


def test_exited_lanes_do_not_hold_a_collective_back() -> None:
    body = "setp.lt.u32 %p1, %r0, 4; mov.u32 %r20, 9; @%p1 exit; bar.sync 0; activemask.b32 %r20;"
    assert lanes(body).tolist() == [0] * 4 + [0xFFFFFFF0] * 28


def test_lanes_park_at_an_aligned_barrier() -> None:
    """One lane comes later than its warp-mates, which is legal: the warp arrives as a whole."""
    body = """
      mov.u32 %r20, 0; mov.u32 %r10, 0; setp.ne.u32 %p1, %r0, 3; @%p1 bra WAIT;
    LONG: add.u32 %r10, %r10, 1; setp.lt.u32 %p2, %r10, 3000; @%p2 bra LONG;
    WAIT: bar.sync 0; activemask.b32 %r20;
    """
    assert lanes(body, block=64).tolist() == [FULL] * 64


def test_lanes_at_different_collectives_are_an_error() -> None:
    body = "setp.lt.u32 %p1, %r0, 16; @%p1 bra A;\n bar.sync 1; bra B;\nA: bar.sync 2;\nB:"
    done = run(kernel(body), {"out": np.zeros(4, "<u4")})
    assert done.fatal == "sync.divergent_collective"
    assert "lanes 0xffff0000" in done.message(done.fatal) and "lanes 0xffff " in done.message(done.fatal)


GUARDED = """
  mov.u32 %r20, 5; mov.u32 %r11, 1; setp.eq.u32 %p2, %r0, {who}; setp.ne.u32 %p1, %r0, 0;
  @%p1 bra OTHERS;
POLL: ld.volatile.global.u32 %r10, [%rd1]; setp.eq.u32 %p3, %r10, 0; @%p3 bra POLL;
  bra END;
OTHERS: @%p2 bar.sync 1;
  st.volatile.global.u32 [%rd1], %r11;
END:
"""
"""Lane 0 polls a flag that the others set after a barrier, at which lane `who` is to wait."""


@pytest.mark.parametrize("schedule", ["fair", "lazy", "random"])
def test_lanes_whose_guard_is_off_do_not_wait_at_an_aligned_barrier(schedule: str) -> None:
    def go(who: int) -> Run:
        text = kernel(f"{GUARDED.format(who=who)}\n{STORE}")
        return run(text, {"out": np.zeros(32, "<u4"), "flag": np.zeros(4, "<u4")}, schedule=schedule)

    nobody = go(99)
    assert nobody.launch.outcome == Outcome.OK, nobody.records
    assert nobody.words().tolist() == [5] * 32
    assert go(7).fatal == "emulator.livelock"  # it waits for lane 0, which waits for it


# ---- shuffles


def shuffle_source(mode: str, lane: int, offset: int, clamp: int) -> tuple[int, bool]:
    """PTX ISA, shfl.sync: the lane that is read, and whether it is in range."""
    b, c, segment = offset & 31, clamp & 31, clamp >> 8 & 31
    last, first = (lane & segment) | (c & ~segment & 31), lane & segment
    source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": first | (b & ~segment & 31)}[mode]
    valid = source >= last if mode == "up" else source <= last
    return (source, True) if valid else (lane, False)


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@settings(max_examples=15, deadline=None)
@given(offset=st.integers(0, 40), width=st.sampled_from([1, 2, 4, 8, 16, 32]), upper=st.booleans())
def test_shuffles(mode: str, offset: int, width: int, upper: bool) -> None:
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
    body = f"""
      mul.lo.u32 %r10, %r0, 3; shfl.sync.{mode}.b32 %r20|%p1, %r10, {offset}, {clamp}, 0xffffffff;
      selp.b32 %r11, 1000, 0, %p1; add.u32 %r20, %r20, %r11;
    """
    sources = [shuffle_source(mode, lane, offset, clamp) for lane in range(32)]
    assert lanes(body).tolist() == [3 * source + 1000 * valid for source, valid in sources]


def test_shuffle_waits_for_its_members_only() -> None:
    """Both halves shuffle among themselves, inside different branches."""
    body = """
      setp.lt.u32 %p1, %r0, 16; @%p1 bra LOW;
      shfl.sync.idx.b32 %r20, %r0, 31, 31, 0xffff0000; bra JOIN;
    LOW: shfl.sync.idx.b32 %r20, %r0, 5, 31, 0xffff;
    JOIN:
    """
    assert lanes(body).tolist() == [5] * 16 + [31] * 16


def test_shuffle_from_a_lane_that_is_elsewhere_is_reported() -> None:
    body = "setp.ge.u32 %p1, %r0, 16; @%p1 exit; shfl.sync.down.b32 %r20, %r0, 8, 31, 0xffff;"
    done = run(kernel(f"{body}\n{STORE}"), {"out": np.zeros(32, "<u4")})
    assert done.codes == ["warp.shfl_inactive_source"]
    assert "lane 8 " in done.message("warp.shfl_inactive_source")


def test_member_mask_must_name_the_lane_itself() -> None:
    done = run(kernel(f"shfl.sync.idx.b32 %r20, %r0, 0, 31, 0xffff;\n{STORE}"), {"out": np.zeros(32, "<u4")})
    assert "warp.mask_excludes_self" in done.codes
    clean = run(kernel(f"shfl.sync.idx.b32 %r20, %r0, 0, 31, -1;\n{STORE}"), {"out": np.zeros(32, "<u4")})
    assert clean.codes == []


# ---- votes, matches, reductions, elections


@settings(max_examples=20, deadline=None)
@given(pattern=st.one_of(st.sampled_from([0, FULL, 0xF0F0F0F0]), st.integers(0, FULL)))
def test_votes(pattern: int) -> None:
    body = f"""
      mov.u32 %r10, {pattern}; shr.u32 %r10, %r10, %r0; and.b32 %r10, %r10, 1; setp.eq.u32 %p1, %r10, 1;
      vote.sync.all.pred %p2, %p1, -1; vote.sync.any.pred %p3, %p1, -1; vote.sync.uni.pred %p4, %p1, -1;
      vote.sync.all.pred %p5, !%p1, -1;
      selp.b32 %r20, 1, 0, %p2; selp.b32 %r11, 2, 0, %p3; or.b32 %r20, %r20, %r11;
      selp.b32 %r11, 4, 0, %p4; or.b32 %r20, %r20, %r11; selp.b32 %r11, 8, 0, %p5; or.b32 %r20, %r20, %r11;
    """
    want = (pattern == FULL) + 2 * (pattern != 0) + 4 * (pattern in (0, FULL)) + 8 * (pattern == 0)
    assert lanes(body).tolist() == [want] * 32
    ballot = f"mov.u32 %r10, {pattern}; shr.u32 %r10, %r10, %r0; and.b32 %r10, %r10, 1; setp.eq.u32 %p1, %r10, 1; vote.sync.ballot.b32 %r20, %p1, -1;"
    assert lanes(ballot).tolist() == [pattern] * 32


@settings(max_examples=15, deadline=None)
@given(values=st.lists(st.sampled_from([0, 1, 5, FULL, 0x80000000]), min_size=32, max_size=32))
def test_match_and_reductions(values: list[int]) -> None:
    source = np.array(values, "<u4")
    any_mask = apply("match.any.sync.b32 %d, %a, -1;", "u32", ["u32"], source)
    assert any_mask.tolist() == [sum(1 << j for j in range(32) if values[j] == v) for v in values]
    everyone = apply(
        "match.all.sync.b32 %d|%q, %a, -1; selp.b32 %t0, 1, 0, %q; xor.b32 %d, %d, %t0;", "u32", ["u32"], source
    )
    assert everyone.tolist() == [FULL - 1 if len(set(values)) == 1 else 0] * 32
    signed = source.view("<i4").tolist()
    total = {
        "add.u32": sum(values), "min.u32": min(values), "max.u32": max(values), "min.s32": min(signed), "max.s32": max(signed),
        "and.b32": np.bitwise_and.reduce(source), "or.b32": np.bitwise_or.reduce(source), "xor.b32": np.bitwise_xor.reduce(source),
    }  # fmt: skip
    for form, want in total.items():
        assert apply(f"redux.sync.{form} %d, %a, -1;", "u32", ["u32"], source).tolist() == [int(want) & FULL] * 32, form


@pytest.mark.parametrize("words", ["", ".abs", ".NaN", ".abs.NaN"])
@pytest.mark.parametrize("operation", ["min", "max"])
def test_reductions_of_floats(operation: str, words: str) -> None:
    """PTX ISA 9.7.13.12: +0 is the larger zero; without .NaN only numbers count; a NaN result is the canonical one."""
    nan, canonical = 0xFFC12345, 0x7FFFFFFF
    base = np.array([1.5, -2.25, 0.0, -0.0, 1e-42, -1e-42, 3e38, -3e38], np.float32).view("<u4")
    numbers, zeros = np.resize(base, 32), np.resize(base[2:4], 32)
    with_nan, infinite = numbers.copy(), numbers.copy()
    with_nan[[3, 17]], infinite[9] = nan, 0xFF800000
    for source in (numbers, zeros, with_nan, infinite, np.full(32, nan, "<u4")):
        bits = source & 0x7FFFFFFF if "abs" in words else source
        is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
        key = np.where(bits >> 31, -(bits & 0x7FFFFFFF).astype(np.int64) - 1, bits.astype(np.int64))[~is_nan]
        if is_nan.all() or ("NaN" in words and is_nan.any()):
            want = canonical
        else:
            want = int(bits[~is_nan][key.argmin() if operation == "min" else key.argmax()])
        got = apply(f"redux.sync.{operation}{words}.f32 %d, %a, -1;", "b32", ["b32"], source)
        assert got.tolist() == [want] * 32, (words, source)


def test_a_reduction_of_floats_takes_the_lanes_of_its_mask() -> None:
    body = """
      cvt.rn.f32.u32 %f1, %r0; setp.lt.u32 %p1, %r0, 8; mov.b32 %r20, 0; @!%p1 bra END;
      redux.sync.max.f32 %f2, %f1, 0xff; mov.b32 %r20, %f2;
    END:
    """
    assert lanes(body).view("<f4").tolist() == [7.0] * 8 + [0.0] * 24


def test_election_waits_for_its_whole_mask() -> None:
    """After a divergent branch only one leader is elected: the lowest lane of the mask."""
    body = """
      mov.u32 %r10, 0; setp.gt.u32 %p1, %r0, 7; @%p1 bra GO;
    LONG: add.u32 %r10, %r10, 1; setp.lt.u32 %p2, %r10, 100; @%p2 bra LONG;
    GO: elect.sync %r11|%p3, 0xfffffffc; selp.b32 %r20, 100, 0, %p3; add.u32 %r20, %r20, %r11;
    """
    guard = "setp.lt.u32 %p4, %r0, 2; mov.u32 %r20, 0; @%p4 bra END;"
    got = lanes(f"{guard}{body}\nEND:").tolist()
    assert got == [0, 0, 102] + [2] * 29


def test_warp_barrier_joins_lanes_from_different_places() -> None:
    body = """
      setp.lt.u32 %p1, %r0, 16; @%p1 bra LOW;
      bar.warp.sync -1; mov.u32 %r20, 1; bra JOIN;
    LOW: bar.warp.sync -1; mov.u32 %r20, 2;
    JOIN:
    """
    assert lanes(body).tolist() == [2] * 16 + [1] * 16


def test_special_registers() -> None:
    body = "mov.u32 %r10, %laneid; mov.u32 %r11, %warpid; mov.u32 %r12, %lanemask_lt; shl.b32 %r20, %r11, 8; add.u32 %r20, %r20, %r10; popc.b32 %r12, %r12; shl.b32 %r12, %r12, 16; add.u32 %r20, %r20, %r12;"
    assert lanes(body, block=64).tolist() == [(t // 32) * 256 + t % 32 + (t % 32 << 16) for t in range(64)]


@pytest.mark.parametrize(("static", "dynamic", "total"), [(100, 40, 256), (128, 0, 128), (128, 1, 256), (0, 0, 0)])
def test_sizes_of_shared_memory_come_in_allocation_units(static: int, dynamic: int, total: int) -> None:
    """10.30: in multiples of 128 bytes on sm_9x; 10.31: with the 1 KiB that is reserved; 10.32: as the launch gives it."""
    declared = f".shared .b8 sm[{static}];" if static else ""
    body = f"{declared} mov.u32 %r20, %total_smem_size; mov.u32 %r21, %aggr_smem_size; mov.u32 %r22, %dynamic_smem_size; st.global.v2.u32 [%rd0], {{%r20, %r21}}; st.global.u32 [%rd0+8], %r22;"
    done = run(kernel(body), {"out": np.zeros(3, "<u4")}, block=1, dynamic_smem_bytes=dynamic)
    assert done.words().tolist() == [total, total + 1024, dynamic]


def test_clocks_advance() -> None:
    body = "mov.u64 %rd10, %clock64; mov.u64 %rd11, %globaltimer; nanosleep.u32 1000; mov.u64 %rd12, %clock64; mov.u64 %rd13, %globaltimer; sub.u64 %rd12, %rd12, %rd10; sub.u64 %rd13, %rd13, %rd11; min.u64 %rd12, %rd12, %rd13; cvt.u32.u64 %r20, %rd12;"
    assert (lanes(body) >= 1000).all()
