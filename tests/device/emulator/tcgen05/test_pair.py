"""tcgen05 of a pair of CTAs against numpy: mma of both shapes, cp, shift, commit to several CTAs, the pair's TMA."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgym.device.emulator.tensor_map import pack
from ptxgym.plan.model import BufferRef, TensorMap
from tests.device.emulator.tcgen05.harness import IN, SCHEDULES, Run, dump, fill, run
from tests.device.emulator.tcgen05.operands import K, Layout, bf16, instruction, layouts, small_integers
from tests.device.emulator.tcgen05.pair import (
    AFTER,
    COMMIT_BOTH,
    IMAGE,
    accumulator,
    allocated,
    cluster_sync,
    descriptors,
    floats,
    freed,
    image,
    images,
    in_cta,
    mma,
    one,
    operands,
    product,
    ranked,
)
from tests.device.emulator.tcgen05.test_copy import SHAPES, lanes, shifted

# ---- mma


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("issuer", [0, 1])
@pytest.mark.parametrize(("m", "n"), [(256, 256), (256, 16), (256, 48), (128, 256), (128, 16), (128, 48)])
def test_shapes(m: int, n: int, issuer: int, schedule: str) -> None:
    rng = np.random.default_rng(m + n)
    a, b = small_integers(rng, m, K), small_integers(rng, n, K)
    columns = n if m == 256 else n // 2
    done = product(
        mma(instruction(m, n), False), columns, images(a, b), issuer=issuer, schedule=schedule, seed=m + issuer
    )
    assert done.ok, done.codes()
    assert not done.codes()
    np.testing.assert_array_equal(accumulator(floats(done), m, n), a @ b.T)
    assert int(done.launch.multiply_adds.sum()) == m * n * K


@pytest.mark.parametrize("layout", layouts(128), ids=str)
def test_layouts_of_a(layout: Layout) -> None:
    rng = np.random.default_rng(1)
    a, b = small_integers(rng, 256, K), small_integers(rng, 32, K)
    issue = mma(instruction(256, 32, mn_a=layout.mn_major), False)
    done = product(issue, 32, images(a, b, layout), layout)
    assert not done.codes()
    np.testing.assert_array_equal(accumulator(floats(done), 256, 32), a @ b.T)


@pytest.mark.parametrize("m", [128, 256])
@pytest.mark.parametrize("layout", layouts(64), ids=str)
def test_layouts_of_b(layout: Layout, m: int) -> None:
    rng = np.random.default_rng(2)
    a, b = small_integers(rng, m, K), small_integers(rng, 128, K)
    issue = mma(instruction(m, 128, mn_b=layout.mn_major), False)
    done = product(issue, 128 if m == 256 else 64, images(a, b, layout_b=layout), layout_b=layout)
    assert not done.codes()
    np.testing.assert_array_equal(accumulator(floats(done), m, 128), a @ b.T)


@pytest.mark.parametrize("m", [128, 256])
def test_half_precision_result(m: int) -> None:
    rng = np.random.default_rng(3)
    a, b = small_integers(rng, m, K), small_integers(rng, 32, K)
    halves = [
        image(x.astype(np.float16).view(np.uint16), y.astype(np.float16).view(np.uint16), Layout(128, False, 16, 1024),
              Layout(128, False, 16, 1024))
        for x, y in zip(np.split(a, 2), np.split(b, 2), strict=True)
    ]  # fmt: skip
    columns = 32 if m == 256 else 16
    done = product(mma(instruction(m, 32, f16=True, f16_result=True), False), columns, b"".join(halves))
    words = accumulator(done.words(2, 128, columns), m, 32)
    np.testing.assert_array_equal((words & 0xFFFF).astype(np.uint16).view(np.float16), (a @ b.T).astype(np.float16))


@pytest.mark.parametrize("m", [128, 256])
@pytest.mark.parametrize("scale", [0, 3])
def test_accumulation(m: int, scale: int) -> None:
    rng = np.random.default_rng(4)
    a, b = small_integers(rng, m, K), small_integers(rng, 32, K)
    columns = 32 if m == 256 else 16
    before = fill(columns, "mad.lo.u32 {r}, rank, 128, tid;\ncvt.rn.f32.u32 {r}, {r};")
    done = product(mma(instruction(m, 32), True, f", {scale}" if scale else ""), columns, images(a, b), before=before)
    assert not done.codes()
    old = np.broadcast_to(np.arange(256, dtype=np.float32).reshape(2, 128, 1), (2, 128, columns)) * 2.0**-scale
    np.testing.assert_array_equal(accumulator(floats(done), m, 32), a @ b.T + accumulator(old, m, 32))


def test_masks_of_disabled_lanes_number_the_lanes_of_both() -> None:
    rng = np.random.default_rng(5)
    a, b = small_integers(rng, 256, K), small_integers(rng, 16, K)
    masks = (0x0000_00F0, 0xFFFF_FFFF, 0x8000_0001, 0, 0x0000_0003, 0, 0xFFFF_0000, 0x4000_0000)
    vector = f", {{{', '.join(map(str, masks))}}}"
    done = product(
        mma(instruction(256, 16), False, masks=vector), 16, images(a, b), before=fill(16, "mov.u32 {r}, 0x42280000;")
    )
    off = np.array([masks[lane // 32] >> lane % 32 & 1 for lane in range(256)], bool)
    np.testing.assert_array_equal(accumulator(floats(done), 256, 16), np.where(off[:, None], 42.0, a @ b.T))


def test_ablation_delivers_zeros_in_both() -> None:
    rng = np.random.default_rng(6)
    data = images(small_integers(rng, 256, K), small_integers(rng, 16, K))
    assert not floats(product(mma(instruction(256, 16), False), 16, data, zero=True)).any()


def test_sums_of_ordinary_numbers_agree_with_double_precision() -> None:
    rng = np.random.default_rng(7)
    a, b = ((rng.standard_normal((rows, K)).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
            for rows in (256, 64))  # fmt: skip
    done = product(mma(instruction(256, 64), False), 64, images(a, b))
    want = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(accumulator(floats(done), 256, 64), want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("m", "duplicated"), [(256, True), (128, True), (128, False)])
def test_a_in_tensor_memory(m: int, duplicated: bool) -> None:
    """With M = 128 lanes 64-127 must hold the rows of lanes 0-63 again: they serve the second half of the columns."""
    rng = np.random.default_rng(8)
    a, b = small_integers(rng, m, K), small_integers(rng, 32, K)
    bits = bf16(a).astype(np.uint32)
    packed = (bits[:, 0::2] | bits[:, 1::2] << 16).reshape(2, m // 2, K // 2)
    cells = packed if m == 256 else np.concatenate([packed, packed if duplicated else np.zeros_like(packed)], axis=1)
    memory = [
        np.frombuffer(image(None, bf16(part), *[Layout(128, False, 16, 1024)] * 2), np.uint8).copy()
        for part in np.split(b, 2)
    ]
    for p in range(2):
        memory[p][: 128 * 32] = np.ascontiguousarray(cells[p]).view(np.uint8).reshape(-1)
    columns = 32 if m == 256 else 16
    body = operands(allocated(out_bytes=128 * 4 * columns))
    # The first 4 KiB hold the cells, a row of 32 bytes for each thread.
    body.add("shl.b32 r0, tid, 5;\nadd.u32 r0, r0, data;\nadd.u32 r1, tmem, rowbits;\nadd.u32 r1, r1, 128;")
    body.add("ld.shared.v4.b32 {r4, r5, r6, r7}, [r0];\nld.shared.v4.b32 {r8, r9, r10, r11}, [r0+16];")
    body.add("tcgen05.st.sync.aligned.32x32b.x8.b32 [r1], {r4, r5, r6, r7, r8, r9, r10, r11};")
    cluster_sync(body.add("tcgen05.wait::st.sync.aligned;"))
    one(body, 0, "add.u32 r3, tmem, 128;\n" + mma(instruction(m, 32), False, a="[r3]") + COMMIT_BOTH)
    body.wait().add(AFTER).add(dump(columns))
    done = run(freed(body), b"".join(m.tobytes() for m in memory), out_bytes=2 * 128 * 4 * columns, ctas=2)
    assert done.ok, done.codes()
    assert not done.codes()
    want = a @ b.T
    if not duplicated:
        want[:, 16:] = 0
    np.testing.assert_array_equal(accumulator(floats(done), m, 32), want)


def test_two_pairs_in_a_cluster_of_four() -> None:
    rng = np.random.default_rng(9)
    a, b = small_integers(rng, 512, K), small_integers(rng, 16, K)
    size = 128 * 4 * 16
    body = operands(allocated(out_bytes=size))
    body.add("and.b32 other, rank, 1;\nshl.b32 r3, 3, rank;\ncvt.u16.u32 h1, r3;")
    body.add("setp.ne.u32 q, other, 0;\nsetp.ne.u32 q2, tid, 0;\nor.pred q, q, q2;\n@q bra NOT_LEADER;")
    commit = COMMIT_BOTH.replace("mov.b16 h1, 3;", "")
    body.add(f"{mma(instruction(256, 16), False)}\n{commit}\nNOT_LEADER:").wait().add(AFTER).add(dump(16))
    data = images(a[:256], b) + images(a[256:], b)
    done = run(freed(body), data, out_bytes=4 * size, ctas=4)
    assert done.ok, done.codes()
    assert not done.codes()
    cells = done.output.view(np.float32).reshape(4, 128, 16)
    np.testing.assert_array_equal(cells.reshape(512, 16), a @ b.T)


# ---- cp and shift


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_cp_copies_in_each_cta_from_its_own_shared_memory(shape: str, schedule: str) -> None:
    rows, words = SHAPES[shape]
    rng = np.random.default_rng(rows + words)
    source = rng.integers(0, 1 << 32, (2, rows, words), np.uint32)
    memory = np.zeros((2, IMAGE), np.uint8)
    for part in range(2):
        for row in range(rows):
            for chunk in range(words // 4):
                at = row // 8 * 128 + row % 8 * 16 + chunk * 4096
                memory[part, at : at + 16] = source[part, row, 4 * chunk : 4 * chunk + 4].view(np.uint8)
    layout = Layout(0, False, 4096, 128)
    body = operands(allocated(out_bytes=128 * 4 * 16).add(fill(16)), layout)
    one(body, 0, f"tcgen05.cp.cta_group::2.{shape} [tmem+4], da;\n{COMMIT_BOTH}")
    body.wait().add(AFTER).add(dump(16))
    done = run(freed(body), memory.tobytes(), out_bytes=2 * 128 * 4 * 16, ctas=2, schedule=schedule)
    assert done.ok, done.codes()
    assert not done.codes()
    want = np.broadcast_to(
        np.arange(128, dtype=np.uint32)[:, None] << 16 | np.arange(16, dtype=np.uint32), (2, 128, 16)
    ).copy()
    for part in range(2):
        for row in range(rows):
            for lane in lanes(shape, row):
                want[part, lane, 4 : 4 + words] = source[part, row]
    np.testing.assert_array_equal(done.words(2, 128, 16), want)


@pytest.mark.parametrize("quarter", range(4))
def test_shift_moves_rows_in_both(quarter: int) -> None:
    body = cluster_sync(allocated(out_bytes=128 * 4 * 16).add(fill(16)))
    one(body, 1, f"tcgen05.shift.cta_group::2.down [tmem+{quarter << 21}];\n{COMMIT_BOTH}")
    body.wait().add(AFTER).add(dump(16))
    done = run(freed(body), out_bytes=2 * 128 * 4 * 16, ctas=2, schedule="lazy")
    assert not done.codes()
    before = np.arange(128, dtype=np.uint32)[:, None] << 16 | np.arange(16, dtype=np.uint32)
    for part in range(2):
        np.testing.assert_array_equal(done.words(2, 128, 16)[part], shifted(before, quarter))


# ---- commit


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("mask", [0b0001, 0b0010, 0b0101, 0b1111])
def test_commit_signals_the_barriers_of_its_mask_and_no_other(mask: int, group: int) -> None:
    """Every CTA writes whether the phase of its barrier is complete."""
    body = ranked(out_bytes=4)
    commit = f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
    one(body, 0, f"mov.b16 h1, {mask};\n{commit} [mbar], h1;\nbar.warp.sync 1;")
    cluster_sync(cluster_sync(body))
    body.add("mbarrier.test_wait.parity.shared::cta.b64 q, [mbar], 0;\nselp.u32 r0, 1, 0, q;\nst.global.u32 [to], r0;")
    done = run(body, out_bytes=16, ctas=4)
    assert done.ok, done.codes()
    assert done.words(4).tolist() == [mask >> rank & 1 for rank in range(4)]


def test_commit_without_a_mask_signals_one_barrier_even_of_another_cta() -> None:
    body = ranked(out_bytes=4)
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
    one(body, 0, f"mapa.shared::cluster.u32 r3, mbar, 1;\n{commit} [r3];")
    cluster_sync(cluster_sync(body))
    body.add("mbarrier.test_wait.parity.shared::cta.b64 q, [mbar], 0;\nselp.u32 r0, 1, 0, q;\nst.global.u32 [to], r0;")
    assert run(body, out_bytes=8, ctas=2).words(2).tolist() == [0, 1]


# ---- TMA of a pair


def tensor_map(rows: int, box_rows: int = 64) -> bytes:
    """[rows, 64] BF16 elements of the input, in boxes of 64 × 64 (or fewer rows), 128-byte swizzle."""
    return pack(
        TensorMap(
            data_type="BFLOAT16",
            global_address=BufferRef(buffer="in"),
            global_dim=(64, rows),
            global_strides_bytes=(128,),
            box_dim=(64, box_rows),
            element_strides=(1, 1),
            interleave="NONE",
            swizzle="128B",
            l2_promotion="NONE",
            oob_fill="NONE",
        ),
        IN,
    )


LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
LOAD_HERE = LOAD.replace("shared::cluster", "shared::cta")
BOX = 64 * 128
"""Bytes."""


SOURCE = np.arange(128 * 64, dtype=np.uint16)


def load_of_both(load: str, data: str = "data", schedule: str = "fair") -> Run:
    """Each CTA loads its box; CUTLASS's mask turns the address of its barrier into that of the even CTA."""
    body = ranked(out_bytes=16)
    body.add("mov.b64 cursor, map;\nand.b32 r3, mbar, 0xFEFFFFFF;\nshl.b32 r0, rank, 6;\nand.b32 r5, data, 0xFEFFFFFF;")
    in_cta(body, 0, f"setp.eq.u32 p, tid, 0;\n@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [mbar], {2 * BOX};")
    body.add(f"setp.eq.u32 p, tid, 0;\n@p {load} [{data}], [cursor, {{0, r0}}], [r3];")
    in_cta(body, 0, "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 q, [mbar], 0;\n@!q bra WAIT;")
    cluster_sync(body)
    body.add("ld.shared.u32 r4, [data];\nst.global.u32 [to], r4;")
    return run(body, SOURCE.tobytes(), out_bytes=32, ctas=2, schedule=schedule, tensor_map=tensor_map(128))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("load", [LOAD, LOAD_HERE], ids=["cluster", "cta"])
def test_loads_of_both_ctas_count_at_the_barrier_of_the_even_one(load: str, schedule: str) -> None:
    """With .cta_group::2 the barrier may lie in the other CTA of the pair, also where the destination may not."""
    done = load_of_both(f"{load}.cta_group::2", schedule=schedule)
    assert done.ok, done.codes()
    assert not done.codes()
    want = SOURCE.view(np.uint32).reshape(128, 32)
    assert done.words(2, 4)[:, 0].tolist() == [want[0, 0], want[64, 0]]


@pytest.mark.parametrize(
    ("load", "data", "says"),
    [
        (
            f"{LOAD_HERE}.cta_group::2",
            "r5",
            "lies in CTA 0 of the cluster: it must lie in the CTA that executes the copy, 1",
        ),
        (f"{LOAD_HERE}.cta_group::1", "data", "names CTA 0 of the cluster"),
        (LOAD_HERE, "data", "names CTA 0 of the cluster"),
    ],
    ids=["destination", "group of one", "no group"],
)
def test_what_a_load_to_its_own_cta_may_not_name(load: str, data: str, says: str) -> None:
    done = load_of_both(load, data)
    assert not done.ok
    assert says in done.message("memory.out_of_bounds"), done.codes(0)


def test_rows_gathered_to_the_own_cta_count_at_the_even_one() -> None:
    rows = tensor_map(128, box_rows=1)
    body = ranked(out_bytes=16).add("mov.b64 cursor, map;\nand.b32 r3, mbar, 0xFEFFFFFF;\nadd.u32 r0, rank, 40;")
    in_cta(body, 0, "setp.eq.u32 p, tid, 0;\n@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [mbar], 1024;")
    load = LOAD_HERE.replace(".tile", ".tile::gather4")
    body.add(f"setp.eq.u32 p, tid, 0;\n@p {load}.cta_group::2 [data], [cursor, {{0, r0, 1, 2, 3}}], [r3];")
    in_cta(body, 0, "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 q, [mbar], 0;\n@!q bra WAIT;")
    cluster_sync(body).add("ld.shared.u32 r4, [data];\nst.global.u32 [to], r4;")
    done = run(body, SOURCE.tobytes(), out_bytes=32, ctas=2, tensor_map=rows)
    assert done.ok, done.message("memory.out_of_bounds")
    assert not done.codes()
    want = SOURCE.view(np.uint32).reshape(128, 32)
    assert done.words(2, 4)[:, 0].tolist() == [want[40, 0], want[41, 0]]


@pytest.mark.parametrize("parity", [0, 1])
def test_multicast_signals_one_cta_of_every_pair(parity: int) -> None:
    """Four CTAs receive a box: its bytes count twice at one CTA of each pair, even or odd as the barrier's place is."""
    body = ranked(out_bytes=4)
    body.add("mov.b64 cursor, map;")
    for rank in (parity, parity + 2):
        one(body, rank, f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [mbar], {2 * BOX};")
    cluster_sync(body)
    one(
        body,
        0,
        f"mov.b16 h1, 15;\nmapa.shared::cluster.u32 r3, mbar, {parity};\n"
        f"{LOAD}.multicast::cluster.cta_group::2 [data], [cursor, {{0, 0}}], [r3], h1;",
    )
    for rank in (parity, parity + 2):
        in_cta(body, rank, f"WAIT{rank}:\nmbarrier.try_wait.parity.shared::cta.b64 q, [mbar], 0;\n@!q bra WAIT{rank};")
    cluster_sync(body)
    body.add("ld.shared.u32 r4, [data];\nst.global.u32 [to], r4;")
    source = np.arange(1, 128 * 64 + 1, dtype=np.uint16)
    done = run(body, source.tobytes(), out_bytes=16, ctas=4, tensor_map=tensor_map(128))
    assert done.ok, done.codes()
    assert not done.codes()
    assert set(done.words(4).tolist()) == {int(source.view(np.uint32)[0])}


def test_descriptors_of_both_ctas_are_the_same() -> None:
    """Bits 24 and up of a shared address name the CTA; a descriptor holds 18 bits of it."""
    body = ranked(out_bytes=8).add(descriptors()).add("st.global.u64 [to], da;")
    cells = run(body, out_bytes=16, ctas=2).output.view(np.uint64)
    assert cells[0] == cells[1]
