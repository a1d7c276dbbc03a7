"""Addresses of operands over arbitrary descriptors, and which instruction descriptors are accepted."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.device.emulator.tcgen05.harness import allocated, freed, run
from tests.device.emulator.tcgen05.operands import K, Layout, bf16, instruction
from tests.device.emulator.tcgen05.test_mma import START_B, floats, image, mma, product

UNITS = st.integers(1, 64).map(lambda n: 16 * n)
LAYOUTS = st.builds(Layout, st.sampled_from([0, 32, 64, 128]), st.booleans(), UNITS, UNITS)


@settings(max_examples=25, deadline=None)
@given(layout=LAYOUTS, seed=st.integers(0, 1 << 16))
def test_any_layout_reads_what_the_canonical_formula_says(layout: Layout, seed: int) -> None:
    """B is what the formula finds in arbitrary bytes, rows that are the same bytes included."""
    rng = np.random.default_rng(seed)
    a = np.eye(128, K, dtype=np.float32)  # D[k, n] = B[n, k]
    memory = np.frombuffer(image(bf16(a), np.zeros((0, K), np.uint16)), np.uint8).copy()
    pool = bf16(rng.integers(-128, 128, (memory.size - START_B) // 2).astype(np.float32))
    memory[START_B:] = pool.view(np.uint8)
    rows = 64
    want = np.array([[pool[layout.offset(n, k) // 2] for k in range(K)] for n in range(rows)], np.uint32) << 16
    issue = mma(instruction(128, rows, mn_b=layout.mn_major), False)
    done = product(allocated(), issue, rows, memory.tobytes(), layout_b=layout)
    assert done.ok, done.codes()
    np.testing.assert_array_equal(floats(done, rows)[:K].T, want.view(np.float32))


@settings(max_examples=60, deadline=None)
@given(bits=st.integers(0, (1 << 32) - 1))
def test_instruction_descriptors_are_those_of_the_table(bits: int) -> None:
    """PTX ISA 9.7.16.4.2, table 42, column .kind::f16, and 9.7.16.2.1 for shapes."""
    _check_instruction(bits)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.integers(0, 2), result=st.integers(0, 2), n=st.integers(0, 63), m=st.sampled_from([2, 4, 8, 16]),
    flip=st.sampled_from([0, 0, 0, 2, 3, 6, 23, 29, 30]),
)  # fmt: skip
def test_instruction_descriptors_near_the_accepted_ones(kind: int, result: int, n: int, m: int, flip: int) -> None:
    _check_instruction((result << 4 | kind << 7 | kind << 10 | n << 17 | m << 24) ^ ((1 << flip) if flip else 0))


def _check_instruction(bits: int) -> None:
    def field(low: int, count: int) -> int:
        return bits >> low & (1 << count) - 1

    legal = (
        field(2, 2) == 0 and field(6, 1) == 0 and field(23, 1) == 0 and field(29, 3) == 0
        and (field(7, 3), field(10, 3), field(4, 2)) in {(0, 0, 0), (0, 0, 1), (1, 1, 1)}
        and 1 <= field(17, 6) <= 32 and field(24, 5) in (4, 8)
    )  # fmt: skip
    zero = 1 << 46 | 128 >> 4 << 16 | 256 >> 4 << 32
    body = allocated().add(f"cvt.u64.u32 da, data;\nshr.u64 da, da, 4;\nor.b64 da, da, {zero};\nmov.b64 db, da;")
    body.thread(0, f"add.u64 from, from, 0;\nld.global.u32 r2, [from];\nsetp.ne.u32 p, 0, 0;\n{ISSUE}").wait()
    done = run(freed(body), bits.to_bytes(4, "little"))
    assert ("tcgen05.instruction_descriptor" in done.codes(2)) != legal


ISSUE = """tcgen05.mma.cta_group::1.kind::f16 [tmem], da, db, r2, p;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [mbar];"""
