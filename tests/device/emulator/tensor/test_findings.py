"""Every finding that copies and matrix instructions raise: a case that trips it, and one that does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptxgym.device.emulator.core import Outcome
from tests.device.emulator.tensor.harness import SCHEDULES, Kernels, Run, succeeded
from tests.gpu.cases import B_START, Case, Map, copy_cases, dense, descriptor, load, mma, store, wgmma

TENSOR = Map((160, 48), (64, 16), swizzle="128B")
GOOD_LOAD = load("good", TENSOR, (8, 3))
A, B = dense(0, "128B", False), dense(B_START, "128B", False)
GOOD_WGMMA = wgmma("good", "wgmma_bf16_n8_kk", A, B)


def faulted(run: Run, code: str) -> str:
    """Check that the launch ended with the one error `code`; return its message."""
    assert run.launch.outcome == Outcome.RUNTIME_FAULT
    assert run.codes() == {code}
    who = [record["who"][0].decode() for record in run.records]
    assert all(name.startswith(("lane ", "warp ")) and "-1" not in name for name in who), who
    return run.message(code)


def with_args(case: Case, **positions: int) -> Case:
    args = [*case.args, *(0,) * (16 - len(case.args))]
    for key, value in positions.items():
        args[int(key[1:])] = value
    return replace(case, args=tuple(args))


COPY_FAULTS = {
    "tma.misaligned": load("x", TENSOR, (8, 3), offset=64),
    "tma.out_of_bounds": replace(with_args(load("x", TENSOR, (8, 3), offset=1024), a2=128), smem_bytes=2048),
    "tma.coordinate": load("x", TENSOR, (4, 3)),
    "tma.rank_mismatch": replace(GOOD_LOAD, kernel="tensor_load_3"),
    "tma.not_a_tensor_map": replace(GOOD_LOAD, map=None),
    "tma.global_out_of_bounds": replace(GOOD_LOAD, input=GOOD_LOAD.input[:1000]),
    "tma.box": replace(GOOD_LOAD, map=replace(TENSOR, box=(128, 16))),
    "tma.misaligned_map": with_args(replace(GOOD_LOAD, kernel="tensor_load_global_map", out_bytes=8192), a8=4096 + 16),
}


@pytest.mark.parametrize("code", COPY_FAULTS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tensor_copies_that_cannot_be(conformance: Kernels, code: str, schedule: str) -> None:
    faulted(conformance.run(COPY_FAULTS[code], schedule), code)


def test_a_good_tensor_copy_has_no_findings(conformance: Kernels) -> None:
    for case in (GOOD_LOAD, with_args(replace(GOOD_LOAD, kernel="tensor_load_global_map", out_bytes=8192), a8=4096)):
        run = conformance.run(case)
        assert succeeded(run)
        assert not len(run.records)


@pytest.mark.parametrize("coords", [(-8, 3), (8, -1)])
def test_stores_may_not_begin_before_the_tensor(conformance: Kernels, coords: tuple[int, int]) -> None:
    """Measured on an H200; loads may, and stores may end beyond it."""
    over = replace(TENSOR, over="out")
    assert "negative" in faulted(conformance.run(store("x", over, coords)), "tma.coordinate")
    assert succeeded(conformance.run(load("x", TENSOR, coords)))
    assert succeeded(conformance.run(store("x", over, (136, 40))))


def test_messages_name_the_value_and_the_way_out(conformance: Kernels) -> None:
    assert "multiple of 16 bytes (8 elements)" in conformance.run(COPY_FAULTS["tma.coordinate"]).message(
        "tma.coordinate"
    )
    assert "cuTensorMapEncodeTiled" in conformance.run(COPY_FAULTS["tma.not_a_tensor_map"]).message(
        "tma.not_a_tensor_map"
    )
    assert "globalDim" in conformance.run(COPY_FAULTS["tma.global_out_of_bounds"]).message("tma.global_out_of_bounds")


GOOD_BULK = next(c for c in copy_cases() if c.name == "bulk/load/48")
BULK_FAULTS = {
    "bulk.size": with_args(GOOD_BULK, a1=24),
    "bulk.misaligned": with_args(GOOD_BULK, a3=520),
    "bulk.out_of_bounds": replace(with_args(GOOD_BULK, a0=8192 - 16, a2=128), smem_bytes=8192),
    "bulk.global_out_of_bounds": with_args(GOOD_BULK, a3=4096 - 16),
}


@pytest.mark.parametrize("code", BULK_FAULTS)
def test_bulk_copies_that_cannot_be(conformance: Kernels, code: str) -> None:
    faulted(conformance.run(BULK_FAULTS[code]), code)
    assert not conformance.run(GOOD_BULK).codes(severity=0)


def test_groups_complete_in_order_and_no_earlier_than_waited_for(faulty: Kernels) -> None:
    source = np.random.default_rng(1).integers(0, 256, 512, np.uint8)
    case = Case("groups", "bulk_groups", 128, source.tobytes(), 512 + 16)
    words = source.view(np.uint32)
    for schedule in SCHEDULES:
        run = faulty.run(case, schedule)
        first, second, _, _ = seen = run.output[512:].view(np.uint32).tolist()
        assert seen == [words[0], second, words[0], words[64]]
        if schedule == "lazy":
            assert second == 0xEEEEEEEE  # the younger group may still be pending
        np.testing.assert_array_equal(run.output[:512], source)
        assert first == words[0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_source_of_a_bulk_store_is_free_after_a_read_wait(faulty: Kernels, schedule: str) -> None:
    case = Case("reuse", "bulk_source_reused", 128, bytes(range(1, 256)) + b"\1", 256)
    for how in (0, 1):
        run = faulty.run(with_args(case, a0=how), schedule)
        assert run.output.tobytes() == case.input
        assert not run.codes()
    assert faulty.run(with_args(case, a0=2), schedule).codes()


CP_ASYNC = Case("cp", "cp_async_checked", 32, bytes(range(256)) * 2, 512, (0, 0, 16))
CP_ASYNC_FAULTS = {
    "cp_async.source_size": with_args(CP_ASYNC, a2=17),
    "memory.misaligned": with_args(CP_ASYNC, a0=8),
    "memory.out_of_bounds": with_args(CP_ASYNC, a0=16),
}


@pytest.mark.parametrize("code", CP_ASYNC_FAULTS)
def test_cp_async_that_cannot_be(faulty: Kernels, code: str) -> None:
    faulted(faulty.run(CP_ASYNC_FAULTS[code]), code)
    run = faulty.run(CP_ASYNC)
    assert run.output.tobytes() == CP_ASYNC.input
    assert not run.codes(severity=0)


def test_cp_async_to_a_misaligned_shared_address(faulty: Kernels) -> None:
    faulted(faulty.run(with_args(CP_ASYNC, a1=8)), "memory.misaligned")


def test_an_mbarrier_gets_no_more_arrivals_of_cp_async_than_it_expects(faulty: Kernels) -> None:
    case = Case("arrivals", "cp_async_arrivals", 32, bytes(128), 128, (1,))
    for schedule in SCHEDULES:
        assert "mbarrier.over_arrival" not in faulty.run(case, schedule).codes()
        too_many = faulty.run(with_args(case, a0=2), schedule)
        assert "mbarrier.over_arrival" in too_many.codes()
        assert "misses 0 in this phase" in too_many.message("mbarrier.over_arrival")


# ---- wgmma


def test_descriptors_outside_of_shared_memory(conformance: Kernels) -> None:
    start = replace(GOOD_WGMMA, wide=(A, descriptor(0x30000, 16, 1024, "128B")))
    assert "start address is wrong" in faulted(conformance.run(start), "descriptor.out_of_bounds")
    stride = replace(GOOD_WGMMA, wide=(descriptor(0, 16, 0x3FF00, "128B"), B))
    message = faulted(conformance.run(stride), "descriptor.out_of_bounds")
    assert "descriptor of A" in message
    assert "offsets or extent are too large" in message


def test_reserved_bits_of_a_descriptor(conformance: Kernels) -> None:
    run = conformance.run(replace(GOOD_WGMMA, wide=(A | 1 << 46, B)))
    assert succeeded(run)
    assert run.codes(severity=1) == {"descriptor.reserved_bits"}
    assert "0x400000000000" in run.message("descriptor.reserved_bits")


def mismatch(map_swizzle: str, descriptor_swizzle: str, *, overwritten: bool = False) -> Case:
    width = 128 if map_swizzle == "NONE" else int(map_swizzle[:-1])
    m = Map((64, 64), (width // 2, 64), swizzle=map_swizzle)
    source = np.random.default_rng(5).integers(1, 256, m.tensor_bytes, np.uint8).tobytes()
    wide = (dense(0, descriptor_swizzle, False), B)
    return Case("mismatch", "swizzle_mismatch", 128, source, 512, (int(overwritten), m.box_bytes), wide, m)


@pytest.mark.parametrize(
    ("written", "read"), [("128B", "64B"), ("128B", "NONE"), ("64B", "128B"), ("NONE", "128B"), ("32B", "64B")]
)
def test_a_descriptor_must_name_the_swizzle_of_the_copy(faulty: Kernels, written: str, read: str) -> None:
    for schedule in SCHEDULES:
        run = faulty.run(mismatch(written, read), schedule)
        assert run.codes() == {"descriptor.swizzle_mismatch"}
        record, forms = run.records[0], faulty.program("swizzle_mismatch").decoded.forms
        assert forms[record["inst"]].startswith("wgmma.mma_async")
        assert forms[record["other_inst"]].startswith("cp.async.bulk.tensor")
    assert not faulty.run(mismatch(written, written)).codes(severity=1)


def test_a_tile_that_wgmma_reads_in_part_is_noted(faulty: Kernels) -> None:
    """One K step takes 32 bytes of a row: a quarter of one kind of tile, the whole of the other."""
    part = faulty.run(mismatch("128B", "128B"))
    assert "of the 8192 bytes" in part.message("descriptor.unread") and "read 2048" in part.message("descriptor.unread")
    assert part.codes(severity=0) == {"descriptor.unread"}
    assert not len(faulty.run(mismatch("32B", "32B")).records)


@pytest.mark.parametrize(("start", "codes"), [(B_START + 128, {"descriptor.swizzle_base"}), (B_START, set())])
def test_a_tile_off_the_period_of_its_swizzle_that_stores_wrote(faulty: Kernels, start: int, codes: set[str]) -> None:
    case = mismatch("32B", "32B")
    run = faulty.run(replace(case, wide=(case.wide[0], dense(start, "128B", False))))
    assert {record["code"].decode() for record in run.records} == codes


@pytest.mark.parametrize(("offset", "codes"), [(128, {"tma.swizzle_base"}), (1024, set())])
def test_a_box_off_the_period_of_its_swizzle(conformance: Kernels, offset: int, codes: set[str]) -> None:
    run = conformance.run(load("x", TENSOR, (8, 3), offset=offset))
    assert {record["code"].decode() for record in run.records} == codes


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bytes_of_a_stored_box_outside_of_the_tensor_need_no_value(faulty: Kernels, schedule: str) -> None:
    """Padding against bank conflicts is stored so: a box wider than the tensor."""
    over = Map((56, 4), (64, 4), over="out")
    case = Case("clipped", "clipped_store", 128, b"", 448, (112,), map=over)
    run = faulty.run(case, schedule)
    assert run.codes(severity=0) == set()
    np.testing.assert_array_equal(run.output.reshape(4, 112), np.tile(np.arange(1, 113, dtype=np.uint8), (4, 1)))
    assert faulty.run(with_args(case, a0=111), schedule).codes() == {"smem.uninitialised"}
    swizzled = replace(case, map=replace(over, swizzle="128B"))
    assert faulty.run(swizzled, schedule).codes() == {"smem.uninitialised"}  # its chunks lie elsewhere


OVERLAPPING = {"elements for bytes": Map((64, 48), (64, 16), (64,)), "16 bytes short": Map((64, 48), (64, 16), (112,))}
APART = {
    "dense": Map((64, 48), (64, 16)),
    "padded": Map((56, 48), (64, 16), (128,)),
    "columns in blocks": Map((64, 32, 4), (64, 8, 2), (512, 128)),
}


@pytest.mark.parametrize("name", OVERLAPPING | APART)
def test_rows_of_a_tensor_map_that_overlap(conformance: Kernels, name: str) -> None:
    tensor = (OVERLAPPING | APART)[name]
    run = conformance.run(load("x", tensor, (0,) * tensor.rank))
    assert succeeded(run)
    assert run.codes(severity=0) == ({"tma.overlapping_rows"} if name in OVERLAPPING else set())
    assert run.codes(severity=1) == set()


@pytest.mark.parametrize(("element", "codes"), [("FLOAT16", {"descriptor.element_type"}), ("UINT16", set())])
def test_floats_read_in_another_format_than_their_tensor_map_says(
    faulty: Kernels, element: str, codes: set[str]
) -> None:
    case = mismatch("32B", "32B")
    assert case.map is not None
    assert not len(faulty.run(case).records)
    run = faulty.run(replace(case, map=replace(case.map, type=element)))
    assert run.codes(severity=0) == codes
    assert run.codes(severity=1) == set()


def test_bytes_that_the_kernel_itself_rewrote_have_no_layout(faulty: Kernels) -> None:
    assert not faulty.run(mismatch("128B", "64B", overwritten=True)).codes()


DIFFERENCES = {1: "descriptor of A", 4: "scale-d"}


def differing(what: int, threads: int = 128) -> Case:
    return Case("differing", "differing_operands", threads, b"", 512, (what,), (A, B))


@pytest.mark.parametrize("what", DIFFERENCES)
def test_operands_must_agree_within_a_warp(faulty: Kernels, what: int) -> None:
    assert DIFFERENCES[what] in faulted(faulty.run(differing(what)), "wgmma.operands_differ")


@pytest.mark.parametrize("what", [2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_operands_must_agree_within_a_warpgroup(faulty: Kernels, what: int, schedule: str) -> None:
    run = faulty.run(differing(what), schedule)
    assert run.codes() == {"wgmma.operands_differ"}
    assert not faulty.run(differing(0), schedule).codes(severity=0)


def test_wgmma_needs_whole_warps_and_warpgroups(faulty: Kernels) -> None:
    assert "0x00000020" in faulted(faulty.run(differing(5)), "wgmma.partial_warp")
    assert "96 threads" in faulted(faulty.run(differing(0, threads=96)), "wgmma.incomplete_warpgroup")


def test_a_warp_that_stays_away_stops_its_warpgroup(faulty: Kernels) -> None:
    case = Case("missing", "missing_warp", 128, b"", 512, (1,), (A, B))
    run = faulty.run(case)
    assert run.launch.outcome == Outcome.HANG
    assert "other warps of its warpgroup" in run.launch.records.decode("utf-8", "replace")
    assert succeeded(faulty.run(with_args(case, a0=0)))


# ---- matrices of a warp


def test_collectives_of_a_warp_need_all_lanes(faulty: Kernels) -> None:
    case = Case("partial", "partial_warp", 32, b"", 128)
    assert "0x00000200" in faulted(faulty.run(with_args(case, a0=1)), "mma.partial_warp")
    assert "movmatrix" in faulted(faulty.run(with_args(case, a0=2)), "matrix.partial_warp")
    run = faulty.run(case)
    np.testing.assert_array_equal(
        run.output.view(np.float32), np.full(32, 9, np.float32)
    )  # 8 products of ones, and a one
    assert not run.codes(severity=0)


def test_matrix_rows_must_be_aligned_and_inside(conformance: Kernels) -> None:
    for kernel, out_bytes, size in (("ldmatrix_4", 512, 512), ("stmatrix_4", 512, 512)):
        good = Case("rows", kernel, 32, bytes(512), out_bytes, (16, 1, size))
        assert succeeded(conformance.run(good))
        faulted(conformance.run(with_args(good, a0=8)), "memory.misaligned")
        faulted(conformance.run(replace(with_args(good, a0=1024), smem_bytes=16384)), "memory.out_of_bounds")


def test_mma_takes_c_before_it_writes_d(conformance: Kernels) -> None:
    assert not conformance.run(mma("mma_bf16_k16")).codes(severity=0)
