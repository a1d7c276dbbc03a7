"""tcgen05.mma kind::f16 against numpy: shapes, layouts, types, signs, accumulation, lanes and operand A in tensor
memory."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.device.emulator.tcgen05.harness import DATA, SCHEDULES, Body, Run, allocated, copy_in, dump, fill, freed, run
from tests.device.emulator.tcgen05.operands import K, Layout, bf16, instruction, layouts, small_integers

K_128 = Layout(128, False, 16, 1024)
START_B = 64 * 1024
IMAGE = 128 * 1024


def rows_of(m: int, upper: bool = False) -> NDArray[np.int64]:
    """Lane of tensor memory of every row (PTX ISA 9.7.16.10.5, layouts D and F)."""
    rows = np.arange(m)
    return rows if m == 128 else rows // 16 * 32 + rows % 16 + (16 if upper else 0)


def image(
    a: NDArray[np.uint16] | None, b: NDArray[np.uint16], layout_a: Layout = K_128, layout_b: Layout = K_128
) -> bytes:
    memory = np.zeros(IMAGE, np.uint8)
    if a is not None:
        layout_a.place(memory, 0, a)
    layout_b.place(memory, START_B, b)
    return memory.tobytes()


def descriptors(layout_a: Layout = K_128, layout_b: Layout = K_128) -> str:
    return f"""
    cvt.u64.u32 da, data;
    shr.u64 da, da, 4;
    add.u64 db, da, {START_B >> 4};
    or.b64 da, da, {layout_a.descriptor()};
    or.b64 db, db, {layout_b.descriptor()};
    """


def product(
    body: Body,
    issue: str,
    columns: int,
    data: bytes,
    layout_a: Layout = K_128,
    layout_b: Layout = K_128,
    **options: object,
) -> Run:
    """Run `issue` in thread 0 and return all lanes of the first columns."""
    body.add(copy_in(IMAGE)).add(descriptors(layout_a, layout_b)).fenced_sync()
    body.thread(0, issue + "\ntcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [mbar];")
    body.wait().add("tcgen05.fence::after_thread_sync;").add(dump((columns + 7) // 8 * 8))
    return run(freed(body), data, out_bytes=128 * 4 * ((columns + 7) // 8 * 8), **options)  # type: ignore[arg-type]


def mma(idesc: int, enable: bool, more: str = "", d: str = "tmem", a: str = "da", masks: str = "") -> str:
    return (
        f"mov.u32 r2, {idesc};\nsetp.ne.u32 p, {int(enable)}, 0;\n"
        f"tcgen05.mma.cta_group::1.kind::f16 [{d}], {a}, db, r2{masks}, p{more};"
    )


def floats(done: Run, columns: int) -> NDArray[np.float32]:
    return done.output.view(np.float32).reshape(128, -1)[:, :columns]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("m", "n"), [(128, 256), (128, 8), (64, 64), (64, 24)])
def test_shapes(m: int, n: int, schedule: str) -> None:
    rng = np.random.default_rng(m + n)
    a, b = small_integers(rng, m, K), small_integers(rng, n, K)
    done = product(allocated(), mma(instruction(m, n), False), n, image(bf16(a), bf16(b)), schedule=schedule)
    assert done.ok, done.codes()
    assert done.codes() == ({"tmem.uninitialised"} if m == 64 else set())  # the dump reads lanes that M = 64 leaves
    np.testing.assert_array_equal(floats(done, n)[rows_of(m)], a @ b.T)
    assert int(done.launch.multiply_adds.sum()) == m * n * K


@pytest.mark.parametrize("layout", layouts(128), ids=str)
def test_layouts_of_a(layout: Layout) -> None:
    rng = np.random.default_rng(1)
    a, b = small_integers(rng, 128, K), small_integers(rng, 16, K)
    issue = mma(instruction(128, 16, mn_a=layout.mn_major), False)
    done = product(allocated(), issue, 16, image(bf16(a), bf16(b), layout), layout)
    assert done.ok, done.codes()
    np.testing.assert_array_equal(floats(done, 16), a @ b.T)


@pytest.mark.parametrize("layout", layouts(64), ids=str)
def test_layouts_of_b(layout: Layout) -> None:
    rng = np.random.default_rng(2)
    a, b = small_integers(rng, 128, K), small_integers(rng, 64, K)
    issue = mma(instruction(128, 64, mn_b=layout.mn_major), False)
    done = product(allocated(), issue, 64, image(bf16(a), bf16(b), layout_b=layout), layout_b=layout)
    assert done.ok, done.codes()
    np.testing.assert_array_equal(floats(done, 64), a @ b.T)


@pytest.mark.parametrize(("negate_a", "negate_b"), [(True, False), (False, True), (True, True)])
def test_negation(negate_a: bool, negate_b: bool) -> None:
    rng = np.random.default_rng(3)
    a, b = small_integers(rng, 128, K), small_integers(rng, 8, K)
    issue = mma(instruction(128, 8, negate_a=negate_a, negate_b=negate_b), False)
    sign = -1 if negate_a != negate_b else 1
    np.testing.assert_array_equal(floats(product(allocated(), issue, 8, image(bf16(a), bf16(b))), 8), sign * (a @ b.T))


def test_half_precision_operands_and_result() -> None:
    rng = np.random.default_rng(4)
    a, b = small_integers(rng, 128, K), small_integers(rng, 8, K)
    data = image(a.astype(np.float16).view(np.uint16), b.astype(np.float16).view(np.uint16))
    wide = product(allocated(), mma(instruction(128, 8, f16=True), False), 8, data)
    np.testing.assert_array_equal(floats(wide, 8), a @ b.T)
    narrow = product(allocated(), mma(instruction(128, 8, f16=True, f16_result=True), False), 8, data)
    words = narrow.words(128, 8)
    np.testing.assert_array_equal((words & 0xFFFF).astype(np.uint16).view(np.float16), (a @ b.T).astype(np.float16))


@pytest.mark.parametrize(("enable", "scale"), [(False, 0), (True, 0), (True, 3), (True, 15)])
def test_accumulation(enable: bool, scale: int) -> None:
    rng = np.random.default_rng(5)
    a, b = small_integers(rng, 128, K), small_integers(rng, 8, K)
    body = allocated().add(fill(8, "cvt.rn.f32.u32 {r}, tid;"))
    done = product(body, mma(instruction(128, 8), enable, f", {scale}" if scale else ""), 8, image(bf16(a), bf16(b)))
    before = np.arange(128, dtype=np.float32)[:, None] * np.float32(2.0**-scale) if enable else 0
    assert done.ok
    assert not done.codes()
    np.testing.assert_allclose(floats(done, 8), a @ b.T + before, rtol=0, atol=2.0**-15)


def test_products_of_one_thread_follow_each_other() -> None:
    rng = np.random.default_rng(6)
    a, b = small_integers(rng, 128, K), small_integers(rng, 32, K)
    idesc = instruction(128, 32)
    issue = "\n".join([mma(idesc, False), mma(idesc, True), mma(idesc, True)])
    done = product(allocated(), issue, 32, image(bf16(a), bf16(b)), schedule="lazy")
    assert not done.codes()
    np.testing.assert_array_equal(floats(done, 32), 3 * (a @ b.T))


def test_disabled_lanes_keep_what_they_hold() -> None:
    rng = np.random.default_rng(7)
    a, b = small_integers(rng, 128, K), small_integers(rng, 8, K)
    masks = (0x0000_00F0, 0xFFFF_FFFF, 0x8000_0001, 0x0000_0000)
    body = allocated().add(fill(8, "mov.u32 {r}, 0x42280000;"))
    vector = f", {{{', '.join(map(str, masks))}}}"
    done = product(body, mma(instruction(128, 8), False, masks=vector), 8, image(bf16(a), bf16(b)))
    off = np.array([masks[lane // 32] >> lane % 32 & 1 for lane in range(128)], bool)
    np.testing.assert_array_equal(floats(done, 8), np.where(off[:, None], 42.0, a @ b.T))


@pytest.mark.parametrize("m", [128, 64])
def test_a_in_tensor_memory(m: int) -> None:
    rng = np.random.default_rng(8)
    a, b = small_integers(rng, m, K), small_integers(rng, 16, K)
    cells = np.zeros((128, K // 2), np.uint32)
    bits = bf16(a).astype(np.uint32)
    cells[rows_of(m)] = bits[:, 0::2] | bits[:, 1::2] << 16
    body = allocated().add(copy_in(IMAGE)).sync()
    # The image's first 4 KiB hold the cells, a row of 32 bytes for each thread.
    body.add("shl.b32 r0, tid, 5;\nadd.u32 r0, r0, data;\nadd.u32 r1, tmem, rowbits;\nadd.u32 r1, r1, 128;")
    body.add("ld.shared.v4.b32 {r4, r5, r6, r7}, [r0];\nld.shared.v4.b32 {r8, r9, r10, r11}, [r0+16];")
    body.add("tcgen05.st.sync.aligned.32x32b.x8.b32 [r1], {r4, r5, r6, r7, r8, r9, r10, r11};")
    body.add("tcgen05.wait::st.sync.aligned;").fenced_sync()
    memory = np.frombuffer(image(None, bf16(b)), np.uint8).copy()
    memory[: cells.nbytes] = cells.view(np.uint8).reshape(-1)
    text = body.add(descriptors())
    text.thread(
        0,
        "add.u32 r3, tmem, 128;\n"
        + mma(instruction(m, 16), False, a="[r3]")
        + "\ntcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [mbar];",
    )
    text.wait().add("tcgen05.fence::after_thread_sync;").add(dump(16))
    done = run(freed(text), memory.tobytes(), out_bytes=128 * 64)
    assert done.ok, done.codes()
    assert done.codes() == ({"tmem.uninitialised"} if m == 64 else set())  # the dump reads lanes that M = 64 leaves
    np.testing.assert_array_equal(floats(done, 16)[rows_of(m)], a @ b.T)


def test_upper_lanes_of_m64() -> None:
    rng = np.random.default_rng(9)
    a, b = small_integers(rng, 64, K), small_integers(rng, 8, K)
    issue = f"add.u32 r3, tmem, {16 << 16};\n" + mma(instruction(64, 8), False, d="r3")
    done = product(allocated(), issue, 8, image(bf16(a), bf16(b)))
    np.testing.assert_array_equal(floats(done, 8)[rows_of(64, upper=True)], a @ b.T)


def test_ablation_delivers_zeros() -> None:
    rng = np.random.default_rng(10)
    a, b = small_integers(rng, 128, K), small_integers(rng, 8, K)
    done = product(allocated(), mma(instruction(128, 8), False), 8, image(bf16(a), bf16(b)), zero=True)
    assert not floats(done, 8).any()


def test_sums_of_ordinary_numbers_agree_with_double_precision() -> None:
    rng = np.random.default_rng(11)
    a = bf16((rng.standard_normal((128, K)).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32))
    b = bf16((rng.standard_normal((16, K)).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32))
    wide_a, wide_b = ((x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for x in (a, b))
    done = product(allocated(), mma(instruction(128, 16), False), 16, image(a, b))
    np.testing.assert_allclose(floats(done, 16), wide_a @ wide_b.T, rtol=2e-6, atol=2e-6)
    assert DATA % 1024 == 0
