# ruff: noqa: E501  (PTX text is not broken where a reader would not break it)
"""Tensor maps that a kernel rewrites: every field, both places, and the fences between rewriting and use."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgym.device.emulator import tensor_map
from ptxgym.device.emulator.core import Outcome
from ptxgym.device.emulator.placement import place
from ptxgym.plan.model import BufferRef, TensorMap
from tests.device.emulator.core.harness import Run, kernel, run

ROWS, COLUMNS, TILE_ROWS, TILE_COLUMNS = 24, 64, 8, 16
DATA = np.arange(ROWS * COLUMNS, dtype="<f4")
SIZES = {"out": 4 * TILE_ROWS * TILE_COLUMNS, "in": DATA.nbytes, "map": 128, "slot": 256}
ADDRESSES = place(SIZES.items())
MAP = TensorMap(
    data_type="FLOAT32", global_address=BufferRef(buffer="in"), global_dim=(COLUMNS, ROWS),
    global_strides_bytes=(4 * COLUMNS,), box_dim=(TILE_COLUMNS, TILE_ROWS), element_strides=(1, 1),
)  # fmt: skip
SHARED = """
  .shared .align 128 .b8 tile[1024]; .shared .align 128 .b8 draft[128]; .shared .align 8 .b8 bar[8];
  setp.ne.u32 %p1, %r0, 0; @%p1 bra READY; mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster;
READY: mul.wide.u32 %rd9, %r0, 4; add.s64 %rd9, %rd2, %rd9; ld.global.u32 %r10, [%rd9]; shl.b32 %r11, %r0, 2; mov.u32 %r12, draft; add.u32 %r12, %r12, %r11;
  st.shared.u32 [%r12], %r10; bar.sync 0;
"""
COPY = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd3], [draft], 128;"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%rd3], 128;"
LOAD = """
  @%p1 bra ASKED; mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], BYTES;
  cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [tile], [%rd3, {X, Y}], [bar];
ASKED:
TRY: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], PHASE; @!%p2 bra TRY;
  mov.u32 %r20, %r0;
NEXT: shl.b32 %r21, %r20, 2; mov.u32 %r22, tile; add.u32 %r22, %r22, %r21; ld.shared.u32 %r23, [%r22]; mul.wide.u32 %rd9, %r20, 4; add.s64 %rd9, %rd0, %rd9; st.global.u32 [%rd9], %r23;
  add.u32 %r20, %r20, 32; setp.lt.u32 %p3, %r20, 128; @%p3 bra NEXT;
"""


def load(x: int = 0, y: int = 0, phase: int = 0, tile_bytes: int = 512) -> str:
    text = LOAD.replace("{X, Y}", f"{{{x}, {y}}}").replace("PHASE", str(phase)).replace("BYTES", str(tile_bytes))
    return (
        text.replace("ASKED", f"ASKED{phase}")
        .replace("TRY:", f"TRY{phase}:")
        .replace("bra TRY", f"bra TRY{phase}")
        .replace("NEXT", f"NEXT{phase}")
    )


def edit(*fields: str) -> str:
    """Rewriting the draft in one thread."""
    lines = "\n".join(f"@!%p1 tensormap.replace.tile.{field};" for field in fields)
    return f"{lines}\nbar.warp.sync -1;"


def launched(body: str, schedule: str = "fair") -> Run:
    buffers = {
        "out": np.full(TILE_ROWS * TILE_COLUMNS, -1, "<f4"), "in": DATA,
        "map": np.frombuffer(tensor_map.pack(MAP, ADDRESSES["in"]), np.uint8), "slot": np.zeros(256, np.uint8),
    }  # fmt: skip
    return run(kernel(SHARED + body), buffers, inputs=["in", "map"], schedule=schedule)


def whole(*fields: str, x: int = 0, y: int = 0, tile_bytes: int = 512) -> np.ndarray:
    done = launched(edit(*fields) + COPY + ACQUIRE + load(x, y, tile_bytes=tile_bytes))
    part = {"smem.uninitialised"} if tile_bytes < 512 else set()  # the kernel stores the whole tile
    assert done.launch.outcome == Outcome.OK and set(done.codes) == part, done.records
    return done.words(dtype="<f4").reshape(TILE_ROWS, TILE_COLUMNS)


TENSOR = DATA.reshape(ROWS, COLUMNS)


def test_a_map_that_is_only_copied() -> None:
    np.testing.assert_array_equal(
        whole("element_stride.shared::cta.b1024.b32 [draft], 0, 1", x=16, y=8), TENSOR[8:16, 16:32]
    )


def test_the_address_moves_the_tensor() -> None:
    address = ADDRESSES["in"] + 4 * COLUMNS * 2
    np.testing.assert_array_equal(whole(f"global_address.shared::cta.b1024.b64 [draft], {address}"), TENSOR[2:10, :16])


def test_smaller_sizes_clip_and_fill() -> None:
    got = whole(
        "global_dim.shared::cta.b1024.b32 [draft], 0, 20", "global_dim.shared::cta.b1024.b32 [draft], 1, 5", x=16
    )
    want = np.zeros((8, 16), "<f4")
    want[:5, :4] = TENSOR[:5, 16:20]
    np.testing.assert_array_equal(got, want)
    filled = whole("global_dim.shared::cta.b1024.b32 [draft], 1, 5", "fill_mode.shared::cta.b1024.b32 [draft], 1")
    assert np.isnan(filled[5:]).all() and not np.isnan(filled[:5]).any()


def test_the_stride_is_in_bytes_and_counts_from_the_second_dimension() -> None:
    np.testing.assert_array_equal(
        whole(
            f"global_stride.shared::cta.b1024.b64 [draft], 0, {8 * COLUMNS}",
            "global_dim.shared::cta.b1024.b32 [draft], 1, 12",
        ),
        TENSOR[0:16:2, :16],
    )


def test_box_element_stride_and_type() -> None:
    got = whole("box_dim.shared::cta.b1024.b32 [draft], 1, 4", tile_bytes=256)
    np.testing.assert_array_equal(got[:4], TENSOR[:4, :16])
    steps = whole("element_stride.shared::cta.b1024.b32 [draft], 1, 2", tile_bytes=256)
    np.testing.assert_array_equal(steps[:4], TENSOR[0:8:2, :16])
    flushing = whole("elemtype.shared::cta.b1024.b32 [draft], 8")  # f32.ftz; 8 of CUtensorMapDataType is FLOAT64
    np.testing.assert_array_equal(flushing, TENSOR[:8, :16])


def test_nan_fills_floating_point_elements_alone() -> None:
    """An H200 takes a map of integers that fills with NaN for an illegal instruction (tests/golden, tensormap/type)."""
    rows = "global_dim.shared::cta.b1024.b32 [draft], 1, 5"
    fill, integers = "fill_mode.shared::cta.b1024.b32 [draft], 1", "elemtype.shared::cta.b1024.b32 [draft], 2"
    assert (whole(integers, rows)[5:] == 0).all()
    assert np.isnan(whole(fill, rows)[5:]).all()
    done = launched(edit(integers, fill, rows) + COPY + ACQUIRE + load())
    assert done.fatal == "tma.fill_mode" and "elemtype" in done.message("tma.fill_mode")


def test_the_swizzle_of_the_new_map_holds() -> None:
    got = whole("swizzle_mode.shared::cta.b1024.b32 [draft], 2")  # 64B: chunk c of line r at c ^ (r / 2 % 4)
    want = np.empty((8, 16), "<f4")
    for r in range(8):
        for c in range(4):
            want[r, 4 * (c ^ (r // 2 % 4)) :][:4] = TENSOR[r, 4 * c : 4 * c + 4]
    np.testing.assert_array_equal(got, want)


def test_the_rank_counts_from_zero() -> None:
    """A map of rank 1 for a copy of rank 2 is a fault that names both."""
    done = launched(edit("rank.shared::cta.b1024.b32 [draft], 0") + COPY + ACQUIRE + load())
    assert done.fatal == "tma.rank_mismatch" and "rank 1" in done.message("tma.rank_mismatch")


IN_PLACE = f"mul.wide.u32 %rd9, %r0, 4; add.s64 %rd9, %rd3, %rd9; st.global.u32 [%rd9], %r10; bar.sync 0; @!%p1 tensormap.replace.tile.global_address.global.b1024.b64 [%rd3], {ADDRESSES['in'] + 4 * COLUMNS};"
RELEASE = "fence.proxy.tensormap::generic.release.gpu; bar.sync 0;"


@pytest.mark.parametrize("schedule", ["fair", "lazy", "random"])
def test_rewriting_in_global_memory(schedule: str) -> None:
    done = launched(IN_PLACE + RELEASE + ACQUIRE + load(), schedule)
    assert not done.codes
    np.testing.assert_array_equal(done.words(dtype="<f4").reshape(8, 16), TENSOR[1:9, :16])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (IN_PLACE + RELEASE + load(), "tensormap.no_acquire"),
        (IN_PLACE + "bar.sync 0;" + ACQUIRE + load(), "tensormap.no_release"),
        (edit("box_dim.shared::cta.b1024.b32 [draft], 1, 8") + COPY + load(), "tensormap.no_acquire"),
        (COPY + ACQUIRE + load() + "bar.sync 0;" + IN_PLACE + RELEASE + load(phase=1), "tensormap.no_acquire"),
    ],
    ids=["no acquire", "no release", "copied, no acquire", "used before, no second acquire"],
)
def test_a_missing_fence_is_a_warning(body: str, code: str) -> None:
    done = launched(body)
    assert done.launch.outcome == Outcome.OK and done.codes == [code]


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (edit("box_dim.shared::cta.b1024.b32 [draft], 1, 300"), "tensormap.bad_value", "box_dim with 300"),
        (
            edit(f"global_address.shared::cta.b1024.b64 [draft], {ADDRESSES['in'] + 4}"),
            "tensormap.bad_value",
            "global_address",
        ),
        (edit("box_dim.shared::cta.b1024.b32 [tile], 1, 8"), "tensormap.no_map", "hold no tensor map"),
        (edit("box_dim.shared::cta.b1024.b32 [draft+16], 1, 8"), "tensormap.misaligned", "aligned to 64"),
        (
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd9], [draft], 128;",
            "tensormap.divergent_copy",
            "one copy of the warp",
        ),
        (COPY.replace("[%rd3]", "[%rd3+192]"), "memory.out_of_bounds", "past"),
    ],
)
def test_what_cannot_be(body: str, code: str, words: str) -> None:
    done = launched(body)
    assert done.fatal == code and (words in done.message(code) or code.startswith("memory"))
