# ruff: noqa: E501  (PTX text is not broken where a reader would not break it)
"""Whole launches: printf, assert, traps, budgets, counts, and independence of the number of host threads."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from ptxgym.device.emulator.core import Outcome
from ptxgym.device.emulator.ir import OP, UNSET_REGISTER
from tests.device.emulator.core.harness import Run, kernel, program, run

STORE = "mul.wide.u32 %rd9, %r3, 4; add.s64 %rd9, %rd0, %rd9; st.global.u32 [%rd9], %r20;"


def same(text: str, buffers: dict[str, np.ndarray], **options: object) -> Run:
    """Run with one and two host threads; both must agree in everything."""
    one, two = (run(text, buffers, threads=threads, **options) for threads in (1, 2))
    assert one.launch.outcome == two.launch.outcome
    for name in buffers:
        np.testing.assert_array_equal(one.buffers[name], two.buffers[name])
    np.testing.assert_array_equal(one.launch.warp_counts, two.launch.warp_counts)
    np.testing.assert_array_equal(one.launch.thread_counts, two.launch.thread_counts)
    assert one.launch.records == two.launch.records and one.launch.printed == two.launch.printed
    assert one.launch.warp_instructions == two.launch.warp_instructions
    return two


def test_independent_ctas() -> None:
    body = f"mov.u32 %r20, 0; mov.u32 %r10, %r3;\nL: add.u32 %r20, %r20, %r10; sub.u32 %r10, %r10, 1; setp.gt.s32 %p1, %r10, 0; @%p1 bra L;\n{STORE}"
    done = same(kernel(body), {"out": np.zeros(64 * 40, "<u4")}, grid=40, block=64)
    assert not done.launch.reran
    n = np.arange(64 * 40)
    np.testing.assert_array_equal(done.words(), n * (n + 1) // 2)


def test_ctas_that_write_the_same_bytes_run_one_after_the_other() -> None:
    """The last CTA wins, whatever the number of threads."""
    body = "mul.wide.u32 %rd9, %r0, 4; add.s64 %rd9, %rd0, %rd9; st.global.u32 [%rd9], %r1;"
    done = same(kernel(body), {"out": np.zeros(32, "<u4")}, grid=50)
    assert done.launch.reran and set(done.words().tolist()) == {49}


def test_a_cta_that_reads_what_another_wrote() -> None:
    """Each CTA adds to what its predecessor left: only the serial order gives the triangle numbers."""
    body = """
      setp.ne.u32 %p1, %r0, 0; @%p1 bra DONE; mul.wide.u32 %rd9, %r1, 64; add.s64 %rd9, %rd0, %rd9;
      ld.global.u32 %r20, [%rd9]; add.u32 %r21, %r1, 1; add.u32 %r20, %r20, %r21; st.global.u32 [%rd9+64], %r20;
    DONE:
    """
    done = same(kernel(body), {"out": np.zeros(16 * 41, "<u4")}, grid=40)
    assert done.launch.reran
    assert done.words()[::16].tolist() == [k * (k + 1) // 2 for k in range(41)]


def test_in_place_updates_are_independent() -> None:
    """Every CTA reads and writes its own part of one buffer."""
    body = "mul.wide.u32 %rd9, %r3, 4; add.s64 %rd9, %rd0, %rd9; ld.global.u32 %r20, [%rd9]; mul.lo.u32 %r20, %r20, 3; st.global.u32 [%rd9], %r20;"
    done = same(kernel(body), {"out": np.arange(2048, dtype="<u4")}, grid=64)
    assert not done.launch.reran
    assert done.words().tolist() == [3 * k for k in range(2048)]


def test_a_write_to_an_input() -> None:
    body = "mul.wide.u32 %rd9, %r3, 4; add.s64 %rd9, %rd1, %rd9; st.global.u32 [%rd9], %r3;"
    done = same(kernel(body), {"out": np.zeros(4, "<u4"), "in": np.zeros(512, "<u4")}, grid=16, inputs=["in"])
    assert done.words("in").tolist() == list(range(512))


def test_the_first_cta_that_faults_is_reported() -> None:
    body = f"setp.lt.u32 %p1, %r1, 7; selp.b64 %rd0, %rd0, 0, %p1; mov.u32 %r20, 1; {STORE}"
    done = same(kernel(body), {"out": np.zeros(4096, "<u4")}, grid=64)
    assert done.launch.outcome == Outcome.RUNTIME_FAULT and done.records[0]["cta"] == 7


def test_registers_that_nothing_wrote_hold_a_nan() -> None:
    """In every CTA and lane alike, in every width; a register that is written under a guard holds NaN elsewhere."""
    body = """
      .reg .b32 %a; .reg .b64 %b; .reg .b16 %c; .reg .f32 %f; .reg .f64 %g; .reg .pred %q; .reg .b32 %n; .reg .b64 %w;
      setp.lt.u32 %p1, %r0, 16; @%p1 mov.b32 %a, 5; mul.wide.u32 %rd9, %r3, 32; add.s64 %rd9, %rd0, %rd9;
      cvt.u32.u16 %n, %c; st.global.b32 [%rd9], %a; st.global.b32 [%rd9+4], %n; st.global.b64 [%rd9+8], %b;
      testp.notanumber.f32 %p2, %f; testp.notanumber.f64 %p3, %g; selp.u32 %r11, 1, 0, %p2; selp.u32 %r12, 1, 0, %p3; selp.u32 %r13, 1, 0, %q;
      st.global.v2.u32 [%rd9+16], {%r11, %r12}; st.global.u32 [%rd9+24], %r13;
    """
    done = same(kernel(body), {"out": np.zeros(8 * 32 * 6, "<u4")}, grid=6)
    got = done.words().reshape(6, 32, 8)
    assert np.unique(got[:, :16, 0]).tolist() == [5] and np.unique(got[:, 16:, 0]).tolist() == [0xFFFFFFFF]
    unset = [UNSET_REGISTER & 0xFFFF, UNSET_REGISTER, UNSET_REGISTER]
    assert np.unique(got[..., 1:7].reshape(-1, 6), axis=0).tolist() == [[*unset, 1, 1, 1]]
    assert set(done.codes) == {"register.uninitialised"}


# ---- communicating CTAs


def test_ticket_lock_between_ctas() -> None:
    body = """
      setp.ne.u32 %p1, %r0, 0; @%p1 bra DONE; atom.global.add.u32 %r10, [%rd1], 1;
    SPIN: ld.acquire.gpu.global.u32 %r11, [%rd1+4]; setp.ne.u32 %p2, %r11, %r10; @%p2 bra SPIN;
      ld.volatile.global.u32 %r12, [%rd1+8]; mul.wide.u32 %rd9, %r12, 4; add.s64 %rd9, %rd0, %rd9; st.global.u32 [%rd9], %r10;
      add.u32 %r12, %r12, 1; st.volatile.global.u32 [%rd1+8], %r12;
      add.u32 %r13, %r10, 1; st.release.gpu.global.u32 [%rd1+4], %r13;
    DONE:
    """
    done = same(kernel(body), {"out": np.zeros(64, "<u4"), "lock": np.zeros(4, "<u4")}, grid=64)
    assert done.words().tolist() == list(range(64))


@pytest.mark.parametrize("schedule", [{"schedule": "fair"}, {"schedule": "random", "seed": 3}])
def test_split_k_with_flags(schedule: dict[str, object]) -> None:
    """CTA 0 waits for the partial sums of the others, although it starts first."""
    body = f"""
      mov.u32 %r20, 0; setp.ne.u32 %p1, %r1, 0; @%p1 bra PRODUCE;
      mov.u32 %r10, 1;
    NEXT: mul.wide.u32 %rd9, %r10, 4; add.s64 %rd10, %rd2, %rd9;
    SPIN: ld.acquire.gpu.global.u32 %r11, [%rd10]; setp.eq.u32 %p2, %r11, 0; @%p2 bra SPIN;
      mad.lo.u32 %r12, %r10, 32, %r0; mul.wide.u32 %rd9, %r12, 4; add.s64 %rd10, %rd1, %rd9; ld.global.u32 %r13, [%rd10]; add.u32 %r20, %r20, %r13;
      add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 8; @%p3 bra NEXT;
      {STORE} bra DONE;
    PRODUCE:
      mul.wide.u32 %rd9, %r3, 4; add.s64 %rd10, %rd1, %rd9; st.global.u32 [%rd10], %r3; bar.sync 0; membar.gl;
      setp.eq.u32 %p4, %r0, 0; mul.wide.u32 %rd9, %r1, 4; add.s64 %rd10, %rd2, %rd9; mov.u32 %r14, 1; @%p4 st.release.gpu.global.u32 [%rd10], %r14;
    DONE:
    """
    buffers = {"out": np.zeros(32, "<u4"), "part": np.zeros(256, "<u4"), "flag": np.zeros(8, "<u4")}
    done = same(kernel(body), buffers, grid=8, **schedule)
    assert done.words().tolist() == [sum(32 * c + t for c in range(1, 8)) for t in range(32)]


def test_waiting_for_a_cta_that_cannot_become_resident() -> None:
    """CTA 0 waits for CTA 3, but only two CTAs fit on the GPU at a time and neither ends."""
    body = """
      setp.ge.u32 %p1, %r1, 2; @%p1 bra SET;
    SPIN: ld.acquire.gpu.global.u32 %r11, [%rd1]; setp.eq.u32 %p2, %r11, 0; @%p2 bra SPIN; bra DONE;
    SET: mov.u32 %r14, 1; st.release.gpu.global.u32 [%rd1], %r14;
    DONE:
    """
    buffers = {"out": np.zeros(4, "<u4"), "flag": np.zeros(4, "<u4")}
    assert run(kernel(body), buffers, grid=4).launch.outcome == Outcome.OK
    stuck = run(kernel(body), buffers, grid=4, resident_ctas=2, warp_instruction_budget=200_000_000)
    assert stuck.launch.outcome == Outcome.HANG and stuck.fatal == "emulator.livelock"


def test_global_histogram() -> None:
    body = "and.b32 %r10, %r3, 7; mul.wide.u32 %rd9, %r10, 4; add.s64 %rd9, %rd0, %rd9; red.global.add.u32 [%rd9], 1;"
    assert same(kernel(body), {"out": np.zeros(8, "<u4")}, grid=32).words().tolist() == [128] * 8


# ---- counts and budgets


def test_counts_follow_predicates() -> None:
    text = kernel(f"setp.lt.u32 %p1, %r0, 10; mov.u32 %r20, 0; @%p1 mov.u32 %r20, 1; {STORE}")
    done = run(text, {"out": np.zeros(128, "<u4")}, grid=2, block=64)
    at = [i for i, inst in enumerate(program(text).decoded.inst) if inst["guard"] >= 0]
    assert done.launch.warp_counts[at].tolist() == [4] and done.launch.thread_counts[at].tolist() == [20]
    assert done.launch.warp_instructions == done.launch.warp_counts.sum()


@pytest.mark.parametrize("threads", [1, 2])
def test_budget_ends_an_endless_loop(threads: int) -> None:
    done = run(
        kernel("L: add.u32 %r20, %r20, 1; bra L;"),
        {"out": np.zeros(4, "<u4")},
        grid=4,
        threads=threads,
        warp_instruction_budget=50_000,
    )
    assert done.launch.outcome == Outcome.BUDGET


SCHEDULES = [{"schedule": "fair"}, {"schedule": "lazy"}]
ENDLESS = {
    "nothing": "L: bra L;",
    "counter": "L: add.u32 %r20, %r20, 1; bra L;",
    "barriers": "L: bar.sync 0; bra L;",
    "stores": "L: st.global.u32 [%rd0], %r20; add.u32 %r20, %r20, 1; bra L;",
}
POLLS = {
    "load": "L: ld.volatile.global.u32 %r10, [%rd1]; setp.eq.u32 %p1, %r10, 0; @%p1 bra L;",
    "atomic": "L: atom.global.add.u32 %r10, [%rd1], 0; setp.eq.u32 %p1, %r10, 0; @%p1 bra L;",
    "lock": "L: atom.global.cas.b32 %r10, [%rd1], 1, 2; setp.eq.u32 %p1, %r10, 0; @%p1 bra L;",
}
ENOUGH = 40_000_000


@pytest.mark.parametrize("loop", ENDLESS)
def test_a_loop_without_end_is_named(loop: str) -> None:
    """Long before the budget is used up, by the first instruction of its body."""
    text = kernel(f"mov.u32 %r20, 0;\n{ENDLESS[loop]}")
    done = run(text, {"out": np.zeros(4, "<u4")}, grid=4, block=64, warp_instruction_budget=ENOUGH)
    assert done.launch.outcome == Outcome.HANG and done.fatal == "emulator.endless_loop"
    assert done.launch.warp_instructions < ENOUGH / 3
    record = next(r for r in done.records if r["code"] == b"emulator.endless_loop")
    head = next(i for i, inst in enumerate(program(text).decoded.inst) if inst["op"] == OP["BRA"])
    assert record["inst"] == program(text).decoded.inst[head]["target"] and record["other_inst"] == head
    assert b"lane 0 of warp 0 in CTA (0, 0, 0)" in record["message"]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("loop", POLLS)
def test_polls_that_nobody_answers(loop: str, schedule: dict[str, object]) -> None:
    buffers = {"out": np.zeros(4, "<u4"), "flag": np.zeros(4, "<u4")}
    done = run(kernel(POLLS[loop]), buffers, grid=4, block=64, warp_instruction_budget=ENOUGH, **schedule)
    assert done.launch.outcome == Outcome.HANG and done.fatal == "emulator.livelock"
    assert done.launch.warp_instructions < 1_000_000


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("loop", POLLS)
def test_polls_that_are_answered_late(loop: str, schedule: dict[str, object]) -> None:
    """The last CTA counts for long without a store before it sets the flag."""
    count = "LONG: add.u32 %r20, %r20, 1; setp.lt.u32 %p3, %r20, 300000; @%p3 bra LONG;"
    body = f"""
      mov.u32 %r20, 0; setp.eq.u32 %p2, %r1, 3; @%p2 bra SET;
      {POLLS[loop]} bra DONE;
    SET: {count} mov.u32 %r11, 1; st.volatile.global.u32 [%rd1], %r11;
    DONE:
    """
    buffers = {"out": np.zeros(4, "<u4"), "flag": np.zeros(4, "<u4")}
    done = run(kernel(body), buffers, grid=4, **schedule, warp_instruction_budget=ENOUGH)
    assert done.launch.outcome == Outcome.OK, done.fatal


def test_budget_counts_all_ctas() -> None:
    text = kernel(f"mov.u32 %r20, 0;\nL: add.u32 %r20, %r20, 1; setp.lt.u32 %p1, %r20, 100; @%p1 bra L;\n{STORE}")
    buffers = {"out": np.zeros(32 * 64, "<u4")}
    total = run(text, buffers, grid=64).launch.warp_instructions
    assert same(text, buffers, grid=64, warp_instruction_budget=total).launch.outcome == Outcome.OK
    for threads in (1, 2):
        short = run(text, buffers, grid=64, threads=threads, warp_instruction_budget=total - 1)
        assert short.launch.outcome == Outcome.BUDGET


# ---- printf, assert, trap


def printing(form: str, arguments: bytes, strings: str = "") -> str:
    """A kernel whose lane 0 prints `form` with the packed `arguments`."""
    data = ", ".join(str(b) for b in form.encode() + b"\0")
    stores = "\n".join(f"st.local.u8 [%rd10+{i}], {b};" for i, b in enumerate(arguments))
    declarations = f".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n.global .align 1 .b8 fmt[{len(form.encode()) + 1}] = {{{data}}};\n{strings}"
    body = f"""
      .local .align 8 .b8 depot[{max(8, len(arguments))}]; mov.u64 %rd10, depot; {stores}
      setp.ne.u32 %p1, %r0, 0; @%p1 bra DONE;
      cvta.local.u64 %rd11, %rd10; mov.u64 %rd12, fmt; cvta.global.u64 %rd12, %rd12;
      {{ .param .b64 param0; st.param.b64 [param0], %rd12; .param .b64 param1; st.param.b64 [param1], %rd11; .param .b32 retval0;
      call.uni (retval0), vprintf, (param0, param1); ld.param.b32 %r20, [retval0]; }}
    DONE:
    """
    return kernel(body, declarations)


@pytest.mark.parametrize(
    ("form", "arguments", "want"),
    [
        ("x = %d\n", struct.pack("<i", -5), "x = -5\n"),
        ("%u %x %X %o", struct.pack("<4I", 4000000000, 255, 255, 8), "4000000000 ff FF 10"),
        ("%5d|%-5d|%05d|%+d", struct.pack("<4i", 42, 42, 42, 42), "   42|42   |00042|+42"),
        ("%f %.2f %e %g", struct.pack("<4d", 1.5, 2.345, 1e10, 0.5), "1.500000 2.35 1.000000e+10 0.5"),
        (
            "%lld %llu %lx",
            struct.pack("<qQQ", -(2**40), 2**63, 2**40),
            "-1099511627776 9223372036854775808 10000000000",
        ),
        ("%c%c %%", struct.pack("<2i", 72, 105), "Hi %"),
        ("%d %f %d", struct.pack("<i4xdi", 1, 2.0, 3), "1 2.000000 3"),
        ("%*d|%.*f", struct.pack("<2ii4xd", 6, 7, 1, 2.25), "     7|2.2"),
        ("%hd %hhu", struct.pack("<2i", 7, 8), "7 8"),
    ],
)
def test_printf(form: str, arguments: bytes, want: str) -> None:
    assert run(printing(form, arguments), {"out": np.zeros(4, "<u4")}).launch.printed == want


def test_printf_of_a_string_and_a_pointer() -> None:
    text = printing("%p", struct.pack("<Q", 0xABCDEF))
    assert run(text, {"out": np.zeros(4, "<u4")}).launch.printed == "0xabcdef"


def test_printf_is_bounded_and_ordered_by_cta() -> None:
    text = printing("line of twenty chars\n", b"")
    few = same(text, {"out": np.zeros(4, "<u4")}, grid=20)
    assert few.launch.printed == "line of twenty chars\n" * 20
    many = run(text, {"out": np.zeros(4, "<u4")}, grid=5000).launch.printed
    assert len(many) == 64 * 1024 and many.endswith("[printf output cut here]\n")


def test_trap_and_breakpoint() -> None:
    assert run(kernel("setp.eq.u32 %p1, %r0, 9; @%p1 trap;"), {"out": np.zeros(4, "<u4")}).fatal == "kernel.trap"
    assert run(kernel("brkpt;"), {"out": np.zeros(4, "<u4")}).fatal == "kernel.breakpoint"


def test_assert_names_expression_file_and_line() -> None:
    def text(name: str, value: str) -> str:
        data = value.encode() + b"\0"
        return f".global .align 1 .b8 {name}[{len(data)}] = {{{', '.join(map(str, data))}}};\n"

    declarations = (
        ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n"
        + text("msg", "n < 4") + text("file", "/tmp/build/kernel.cu") + text("fn", "k(int)")
    )  # fmt: skip
    body = """
      setp.ne.u32 %p1, %r0, 17; @%p1 bra DONE; mov.u64 %rd10, msg; mov.u64 %rd11, file; mov.u64 %rd12, fn; mov.u32 %r10, 33; mov.u64 %rd13, 1;
      { .param .b64 param0; st.param.b64 [param0], %rd10; .param .b64 param1; st.param.b64 [param1], %rd11; .param .b32 param2; st.param.b32 [param2], %r10;
      .param .b64 param3; st.param.b64 [param3], %rd12; .param .b64 param4; st.param.b64 [param4], %rd13;
      call.uni __assertfail, (param0, param1, param2, param3, param4); }
    DONE:
    """
    done = run(kernel(body, declarations), {"out": np.zeros(4, "<u4")})
    assert done.fatal == "kernel.assert" and done.records[0]["lane"] == 17
    assert done.message("kernel.assert") == "assertion `n < 4` failed at kernel.cu:33 in k(int)"


def test_indexed_branches() -> None:
    body = f"""
      and.b32 %r10, %r0, 3; ts: .branchtargets A, B, C, D;
      brx.idx %r10, ts;
    A: mov.u32 %r20, 10; bra JOIN;
    B: mov.u32 %r20, 11; bra JOIN;
    C: mov.u32 %r20, 12; bra JOIN;
    D: mov.u32 %r20, 13;
    JOIN: {STORE}
    """
    assert run(kernel(body), {"out": np.zeros(32, "<u4")}).words().tolist() == [10 + t % 4 for t in range(32)]


def test_a_grid_of_many_ctas_costs_no_memory_and_ends_by_the_budget() -> None:
    buffers = {"out": np.zeros(4, "<u4")}
    done = run(kernel("mov.u32 %r20, 1;"), buffers, grid=2**31 - 1, threads=2, warp_instruction_budget=1_000_000)
    assert done.launch.outcome == Outcome.BUDGET
    many = run(kernel("mov.u32 %r20, 1;"), buffers, grid=70_000, threads=2)
    assert many.launch.outcome == Outcome.OK and many.launch.warp_counts[0] == 70_000
