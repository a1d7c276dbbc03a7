# ruff: noqa: E501  (PTX text is not broken where a reader would not break it)
"""Functions that are not inlined: parameters, structures, recursion, addresses, and calls of some lanes only."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from ptxgym.build import find_toolchain
from ptxgym.device.emulator.core import Outcome
from ptxgym.device.emulator.decode import refused_forms
from ptxgym.device.emulator.decode_grammar import NotEmulated
from tests.device.emulator.core.harness import kernel, module, program, run

FIB = """
.func (.param .b32 out) fib(.param .b32 n) {
  .reg .pred %p; .reg .b32 %r<6>;
  ld.param.u32 %r1, [n]; setp.lt.u32 %p, %r1, 2; @%p bra DONE;
  sub.u32 %r2, %r1, 1;
  { .param .b32 a; st.param.b32 [a], %r2; .param .b32 b; call.uni (b), fib, (a); ld.param.b32 %r3, [b]; }
  sub.u32 %r2, %r1, 2;
  { .param .b32 a; st.param.b32 [a], %r2; .param .b32 b; call.uni (b), fib, (a); ld.param.b32 %r4, [b]; }
  add.u32 %r1, %r3, %r4;
DONE:
  st.param.b32 [out], %r1; ret;
}
"""
STORE = "mul.wide.u32 %rd9, %r3, 4; add.s64 %rd9, %rd0, %rd9; st.global.u32 [%rd9], %r20;"


def call(function: str, argument: str, result: str = "%r20", guard: str = "") -> str:
    return f"{{ .param .b32 a; st.param.b32 [a], {argument}; .param .b32 b; {guard} call (b), {function}, (a); ld.param.b32 {result}, [b]; }}"


def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)


@pytest.mark.parametrize("schedule", ["fair", "random"])
def test_recursion_differs_from_lane_to_lane(schedule: str) -> None:
    done = run(
        kernel(f"rem.u32 %r10, %r3, 11;\n{call('fib', '%r10')}\n{STORE}", FIB),
        {"out": np.zeros(64, "<u4")},
        block=64,
        schedule=schedule,
        seed=5,
    )
    assert done.launch.outcome == Outcome.OK and not done.codes
    assert done.words().tolist() == [fib(i % 11) for i in range(64)]


def test_recursion_without_end_is_a_fault_that_says_so() -> None:
    endless = ".func down(.param .b32 n) { .reg .b32 %r<3>; ld.param.u32 %r1, [n]; add.u32 %r1, %r1, 1; { .param .b32 a; st.param.b32 [a], %r1; call.uni down, (a); } ret; }"
    done = run(
        kernel("{ .param .b32 a; st.param.b32 [a], %r0; call.uni down, (a); }", endless), {"out": np.zeros(4, "<u4")}
    )
    assert done.launch.outcome == Outcome.RUNTIME_FAULT and done.fatal == "call.too_deep"
    assert "512 calls deep" in done.message("call.too_deep")


def test_a_guarded_call_leaves_the_other_lanes_alone() -> None:
    square = ".func (.param .b32 o) square(.param .b32 n) { .reg .b32 %r<3>; ld.param.u32 %r1, [n]; mul.lo.u32 %r1, %r1, %r1; st.param.b32 [o], %r1; ret; }"
    body = f"mov.u32 %r20, 7; and.b32 %r10, %r3, 1; setp.eq.u32 %p1, %r10, 1; mov.u32 %r21, 5; {{ .param .b32 a; st.param.b32 [a], %r3; .param .b32 b; @%p1 call (b), square, (a); @%p1 ld.param.b32 %r20, [b]; }} add.u32 %r20, %r20, %r21;\n{STORE}"
    done = run(kernel(body, square), {"out": np.zeros(32, "<u4")})
    assert done.words().tolist() == [i * i + 5 if i % 2 else 12 for i in range(32)]


def test_functions_are_called_by_their_addresses() -> None:
    """Each lane its own, from a register and from a table in memory; a wrong address is named."""
    functions = "".join(
        f".func (.param .b32 o) times{k}(.param .b32 n) {{ .reg .b32 %r<3>; ld.param.u32 %r1, [n]; mul.lo.u32 %r1, %r1, {k}; st.param.b32 [o], %r1; ret; }}\n"
        for k in (2, 3, 5)
    )
    table = "\n.global .align 8 .u64 table[3] = {times2, times3, times5};\n"
    prototype = "P: .callprototype (.param .b32 _) _ (.param .b32 _);"
    lookup = "rem.u32 %r10, %r3, 3; mul.wide.u32 %rd9, %r10, 8; mov.u64 %rd10, table; add.s64 %rd9, %rd10, %rd9; ld.global.u64 %rd11, [%rd9];"
    indirect = f"{{ .param .b32 a; st.param.b32 [a], %r3; .param .b32 b; {prototype} call (b), %rd11, (a), P; ld.param.b32 %r20, [b]; }}"
    done = run(kernel(f"{lookup}\n{indirect}\n{STORE}", functions + table), {"out": np.zeros(64, "<u4")}, block=64)
    assert done.words().tolist() == [i * (2, 3, 5)[i % 3] for i in range(64)]
    by_name = f"mov.u64 %rd11, times5;\n{indirect}\n{STORE}"
    assert run(kernel(by_name, functions), {"out": np.zeros(32, "<u4")}).words().tolist() == [5 * i for i in range(32)]
    wrong = run(
        kernel(f"mov.u64 %rd11, times5; add.s64 %rd11, %rd11, 1;\n{indirect}\n{STORE}", functions),
        {"out": np.zeros(32, "<u4")},
    )
    assert wrong.fatal == "call.bad_address" and "no function of this module" in wrong.message("call.bad_address")


def test_other_parameters_than_the_function_takes() -> None:
    narrow = ".func f(.param .b32 n) { ret; }"
    with pytest.raises(NotEmulated, match="other sizes"):
        program(kernel("{ .param .b64 a; st.param.b64 [a], %rd0; call.uni f, (a); }", narrow))
    both = narrow + " .func g(.param .b64 n) { ret; }"
    body = "mov.u64 %rd11, g; mov.u64 %rd12, f; { .param .b32 a; st.param.b32 [a], %r0; P: .callprototype _ (.param .b32 _); call %rd11, (a), P; }"
    done = run(kernel(body, both), {"out": np.zeros(4, "<u4")})
    assert done.fatal == "call.bad_address" and "other parameters" in done.message("call.bad_address")


def test_recursive_functions_with_arrays_are_refused_by_name() -> None:
    deep = ".func f(.param .b32 n) { .local .align 4 .b8 depot[16]; .reg .b32 %r<3>; ld.param.u32 %r1, [n]; st.local.u32 [depot], %r1; { .param .b32 a; st.param.b32 [a], %r1; call.uni f, (a); } ret; }"
    text = kernel("{ .param .b32 a; st.param.b32 [a], %r0; call.uni f, (a); }", deep)
    with pytest.raises(NotEmulated, match="come back to f, which has local variables"):
        program(text)
    assert [refusal.form for refusal in refused_forms(module(text).module.functions["k"])] == ["call.uni"]


def test_barriers_and_shuffles_inside_functions() -> None:
    """A collective of the warp, and one of the CTA, in a function that all threads call."""
    together = """
      .func (.param .b32 o) together(.param .b32 n) {
        .shared .align 4 .b8 box[256]; .reg .b32 %r<8>;
        ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x; shl.b32 %r3, %r2, 2; mov.u32 %r4, box; add.u32 %r4, %r4, %r3;
        st.shared.u32 [%r4], %r1; bar.sync 0; xor.b32 %r5, %r3, 252; mov.u32 %r4, box; add.u32 %r4, %r4, %r5;
        ld.shared.u32 %r6, [%r4]; shfl.sync.bfly.b32 %r7, %r6, 1, 31, -1; st.param.b32 [o], %r7; ret;
      }
    """
    done = run(
        kernel(f"add.u32 %r10, %r3, 100;\n{call('together', '%r10')}\n{STORE}", together),
        {"out": np.zeros(64, "<u4")},
        block=64,
    )
    assert not done.codes and done.words().tolist() == [(63 - (i ^ 1)) + 100 for i in range(64)]


SOURCE = """
struct S { int a; double b; int c[5]; };
__device__ __noinline__ S change(S s, int k) { s.c[k] += 3; s.b *= 2; return s; }
__device__ __noinline__ int ackermann(int m, int n) {
  if (m == 0) return n + 1;
  return ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1));
}
struct Base { __device__ virtual int value(int x) const = 0; };
struct Twice : Base { __device__ __noinline__ int value(int x) const override { return 2 * x; } };
struct Plus : Base { int k; __device__ __noinline__ int value(int x) const override { return x + k; } };
extern "C" __global__ void k(int* out, const int* in) {
  S s{in[0], in[1] * 0.5, {in[2], in[3], in[4], in[5], in[6]}};
  const S t = change(s, threadIdx.x % 5);
  int* mine = out + threadIdx.x * 9;
  for (int i = 0; i < 5; ++i) mine[i] = t.c[i];
  mine[5] = static_cast<int>(t.b);
  mine[6] = ackermann(2, threadIdx.x % 4);
  Twice twice; Plus plus; plus.k = in[7];
  const Base* base = in[threadIdx.x] & 1 ? static_cast<const Base*>(&twice) : &plus;
  mine[7] = base->value(threadIdx.x);
  mine[8] = t.a;
}
"""


def test_what_nvcc_makes_of_structures_recursion_and_virtual_functions(tmp_path: Path) -> None:
    source = tmp_path / "calls.cu"
    source.write_text(SOURCE)
    command = [find_toolchain().nvcc, "-std=c++17", "-O1", "-arch=sm_90a", "-ptx", source, "-o", tmp_path / "k.ptx"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    rng = np.random.default_rng(1)
    given = rng.integers(0, 100, 32).astype("<i4")
    done = run((tmp_path / "k.ptx").read_text(), {"out": np.zeros(32 * 9, "<i4"), "in": given}, inputs=["in"])
    assert done.launch.outcome == Outcome.OK, done.records

    def ackermann(m: int, n: int) -> int:
        return n + 1 if m == 0 else ackermann(m - 1, 1 if n == 0 else ackermann(m, n - 1))

    got = done.words(dtype="<i4").reshape(32, 9)
    for thread in range(32):
        numbers = given[2:7].copy()
        numbers[thread % 5] += 3
        value = 2 * thread if given[thread] & 1 else thread + given[7]
        assert got[thread].tolist() == [*numbers, given[1], ackermann(2, thread % 4), value, given[0]]
