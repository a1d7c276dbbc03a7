"""Thread-block clusters: identities, distributed shared memory, barriers, copies between CTAs, and their hazards."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgym.device.protocol import Execution, RunOptions
from ptxgym.plan.model import BufferRef, TensorMap
from ptxgym.verdict import Failure, Status
from tests.device.emulator.cluster.harness import FAIR, SCHEDULES, codes, launch, words
from tests.device.emulator.hazards.harness import Kernels, lines_of


def instance(kernels: Kernels, name: str, argument: int) -> str:
    """Mangled name of a kernel template's instance."""
    return kernels.mangled(name, f"i{argument}")


def named_at(kernels: Kernels, run: Execution | Failure, function: str, code: str) -> None:
    """The finding names a line that the source marks."""
    found = next(f for f in run.findings if f.code == code)
    assert lines_of(found) & kernels.marked(function, code), found


# ---- who and where


@pytest.mark.parametrize("cluster", [(2, 3, 1), (1, 1, 2), (1, 1, 1), (4, 1, 2)])
def test_identities(kernels: Kernels, cluster: tuple[int, int, int]) -> None:
    """PTX ISA 10.11 to 10.17: cluster ids count in units of clusters, ranks along x, then y, then z."""
    grid = (4, 6, 2)
    run = words(launch(kernels, "identities", 48 * 16, cluster=cluster, grid=grid, block=32)).reshape(2, 6, 4, 16)
    cx, cy, cz = cluster
    for z, y, x in np.ndindex(2, 6, 4):
        inside = (x % cx, y % cy, z % cz)
        assert run[z, y, x].tolist() == [
            x // cx, y // cy, z // cz, 4 // cx, 6 // cy, 2 // cz, *inside, cx, cy, cz,
            inside[0] + cx * (inside[1] + cy * inside[2]), cx * cy * cz, 1, 0xC0DE,
        ]  # fmt: skip


def test_a_launch_without_clusters_has_clusters_of_one(kernels: Kernels) -> None:
    run = words(launch(kernels, "identities", 4 * 16, cluster=None, grid=(4, 1, 1), block=32)).reshape(4, 16)
    for x in range(4):
        assert run[x].tolist() == [x, 0, 0, 4, 1, 1, 0, 0, 0, 1, 1, 1, 0, 1, 0, 0xC0DE]


def test_addresses_differ_by_ranks(kernels: Kernels) -> None:
    run = words(launch(kernels, "addresses", 32, cluster=(4, 1, 1), grid=(4, 1, 1), block=32)).reshape(4, 8)
    for rank in range(4):
        own, target, back, near, far, cluster, rank_of, distance = (int(v) for v in run[rank])
        assert own - int(run[0][0]) == rank << 24 and target == int(run[1][0])
        assert (back, near, far, cluster, rank_of) == (1, 1, int(rank == 1), 1, 1)
        assert distance == ((1 - rank) << 24) % 2**32


# ---- distributed shared memory


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_a_ring_reads_its_neighbour(kernels: Kernels, size: int) -> None:
    grid = 32
    for options in SCHEDULES[:4]:
        run = launch(
            kernels, instance(kernels, "ring", 0), 64 * grid, cluster=(size, 1, 1), grid=(grid, 1, 1), options=options
        )
        cta = np.arange(grid)
        expected = 1000 * ((cta % size + 1) % size)[:, None] + (63 - np.arange(64))[None, :]
        np.testing.assert_array_equal(words(run).reshape(grid, 64), expected)


def test_no_sync_before_the_first_remote_access(kernels: Kernels) -> None:
    for options in SCHEDULES:
        run = launch(kernels, instance(kernels, "ring", 1), 128, options=options)
        assert {"cluster.not_begun", "smem.race"} & codes(run) and "cluster.not_begun" in codes(run), run.findings
    named_at(kernels, run, "ring", "cluster.not_begun")


def test_no_sync_before_the_end(kernels: Kernels) -> None:
    runs = [launch(kernels, instance(kernels, "ring", 2), 128, options=options) for options in SCHEDULES]
    found = [run for run in runs if "cluster.exited_cta" in codes(run, "error")]
    assert found, "no schedule lets a CTA exit before its neighbour reads"
    named_at(kernels, found[0], "ring", "cluster.exited_cta")


@pytest.mark.parametrize("fault", [0, 1])
def test_arrival_at_a_cta_that_has_exited(kernels: Kernels, fault: int) -> None:
    """Published kernels end so: it is no certain fault, as a store there is."""
    runs = [launch(kernels, instance(kernels, "parting", fault), 8, options=options) for options in SCHEDULES]
    found = [run for run in runs if "cluster.exited_cta" in codes(run, "warning")]
    assert bool(found) is (fault == 1)
    assert not any("cluster.exited_cta" in codes(run, "error") for run in runs)
    if found:
        named_at(kernels, found[0], "parting", "cluster.exited_cta")


@pytest.mark.parametrize(("fault", "severity"), [(0, None), (1, "warning"), (2, "error")])
def test_what_threads_did_that_exit_before_the_cluster_barrier(
    kernels: Kernels, fault: int, severity: str | None
) -> None:
    """The barrier completes after their exit, so the order is certain in practice; nothing releases what they wrote."""
    for options in SCHEDULES:
        run = launch(kernels, instance(kernels, "leaving", fault), 64, block=64, options=options)
        assert isinstance(run, Execution)
        assert {f.severity for f in run.findings if f.code == "smem.race"} == ({severity} if severity else set()), (
            options
        )
        if severity:
            named_at(kernels, run, "leaving", "smem.race")
        if fault != 2:
            read = run.buffers["out"].view(np.uint32).reshape(2, 32)
            np.testing.assert_array_equal(read, np.arange(32, 64)[None, :].repeat(2, 0))


def test_generic_atomics_of_every_lane_elsewhere(kernels: Kernels) -> None:
    run = words(launch(kernels, "scatter", 64 * 8, cluster=(4, 1, 1), grid=(8, 1, 1), block=128, smem_bytes=256))
    expected = np.zeros((8, 64), np.uint32)
    expected[:, :32] = 1 + 2 + 3 + 4  # every CTA adds 1 + its rank to each of the first 32 cells of all CTAs
    np.testing.assert_array_equal(run.reshape(8, 64), expected)


@pytest.mark.parametrize("options", SCHEDULES[:5])
def test_histogram_over_a_cluster(kernels: Kernels, options: RunOptions) -> None:
    given = np.random.default_rng(7).integers(0, 128, (8, 256), np.uint32)
    run = words(
        launch(kernels, "histogram", 8 * 32, cluster=(4, 1, 1), grid=(8, 1, 1), block=256, given=given, options=options)
    ).reshape(2, 4, 32)
    for cluster in range(2):
        counts = np.bincount(given[4 * cluster : 4 * cluster + 4].ravel(), minlength=128)
        np.testing.assert_array_equal(run[cluster], counts.reshape(32, 4).T)


@pytest.mark.parametrize(("fault", "severity"), [(1, "error"), (2, "warning")])
def test_a_race_over_the_cluster(kernels: Kernels, fault: int, severity: str) -> None:
    run = launch(kernels, instance(kernels, "remote_race", fault), 64)
    assert codes(run, severity) == {"smem.race"}, run.findings
    named_at(kernels, run, "remote_race", "smem.race")
    assert any("of CTA 1" in party.who for f in run.findings for party in f.parties)


def test_an_ordered_remote_write_is_no_race(kernels: Kernels) -> None:
    for options in SCHEDULES:
        run = launch(kernels, instance(kernels, "remote_race", 0), 64, options=options)
        np.testing.assert_array_equal(words(run), np.arange(64) ^ 32)


# ---- mbarriers of other CTAs


@pytest.mark.parametrize("sound", [0, 2])
def test_a_remote_arrival_hands_over(kernels: Kernels, sound: int) -> None:
    for options in SCHEDULES:
        run = launch(kernels, instance(kernels, "signal", sound), 4, grid=(4, 1, 1), options=options)
        assert words(run).tolist() == [17, 7, 17, 7]


def test_an_initialisation_that_the_cluster_does_not_see(kernels: Kernels) -> None:
    for options in SCHEDULES:
        run = launch(kernels, instance(kernels, "signal", 1), 2, options=options)
        assert {"mbarrier.init_not_visible", "mbarrier.uninitialised"} & codes(run, "error"), run.findings


def test_a_deadlock_names_the_ctas(kernels: Kernels) -> None:
    run = launch(kernels, instance(kernels, "signal", 3), 2)
    assert isinstance(run, Failure) and run.status is Status.HANG
    told = r"deadlock: line \d+ sets mbarrier 0x400 to 2 arrivals .* only 1 come .* warps 0, 1 of CTA \d wait for it at"
    assert re.search(told, run.message), run.message
    named_at(kernels, run, "signal", "emulator.deadlock")
    run = launch(kernels, "lonely", 1)
    assert isinstance(run, Failure) and run.status is Status.HANG
    waits = [f.message for f in run.findings if f.code == "emulator.deadlock"]
    assert any("warps 0, 1 of CTA 1 wait for parity 0" in m for m in waits), waits
    assert any("of CTA 0 wait at the cluster barrier: 64 of 128 threads arrived; some of CTA 1" in m for m in waits)


# ---- asynchronous stores, copies and reductions between CTAs


@pytest.mark.parametrize("size", [2, 3])
def test_st_async(kernels: Kernels, size: int) -> None:
    for options in SCHEDULES:
        run = launch(
            kernels, instance(kernels, "send", 0), 256 * size, cluster=(size, 1, 1), grid=(size, 1, 1), options=options
        )
        out = words(run).reshape(size, 4, 64)
        sender = (np.arange(size) - 1) % size
        expected = 10000 * sender[:, None, None] + 10 * (63 - np.arange(64))[None, None] + np.arange(4)[None, :, None]
        np.testing.assert_array_equal(out, expected)


def test_st_async_read_early_and_bytes_that_were_not_expected(kernels: Kernels) -> None:
    early = launch(kernels, instance(kernels, "send", 1), 512)
    assert "async.read_early" in codes(early, "error")
    named_at(kernels, early, "send", "async.read_early")
    few = launch(kernels, instance(kernels, "send", 2), 512)
    assert codes(few, "error") & {"mbarrier.tx_overflow", "mbarrier.tx_left"}, few.findings


def test_red_async(kernels: Kernels) -> None:
    for options in SCHEDULES:
        out = words(
            launch(kernels, "async_sums", 128, cluster=(4, 1, 1), grid=(4, 1, 1), block=32, options=options)
        ).reshape(4, 32)
        np.testing.assert_array_equal(out, np.broadcast_to(5 + 1000 + 4 * np.arange(32), (4, 32)))


def test_bulk_copy_to_a_peer(kernels: Kernels) -> None:
    for options in SCHEDULES:
        run = launch(kernels, instance(kernels, "share", 0), 256, options=options)
        expected = 1000 * np.array([1, 0])[:, None] + (127 - np.arange(128))[None]
        np.testing.assert_array_equal(words(run).reshape(2, 128), expected)


@pytest.mark.parametrize(("fault", "code"), [(1, "proxy.missing_fence"), (2, "async.overwrite")])
def test_bulk_copy_hazards(kernels: Kernels, fault: int, code: str) -> None:
    run = launch(kernels, instance(kernels, "share", fault), 256)
    assert code in codes(run, "error"), run.findings
    named_at(kernels, run, "share", code)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_bulk_multicast(kernels: Kernels, size: int) -> None:
    given = np.random.default_rng(3).integers(0, 2**31, 192, np.uint32)
    for options in SCHEDULES:
        run = launch(
            kernels,
            instance(kernels, "multicast", 0),
            192 * size,
            cluster=(size, 1, 1),
            grid=(size, 1, 1),
            given=given,
            options=options,
        )
        rows = given.reshape(3, 64)[:, np.arange(64) ^ 32]
        expected = rows[None] + np.arange(size, dtype=np.uint32)[:, None, None]
        np.testing.assert_array_equal(words(run).reshape(size, 3, 64), expected)


@pytest.mark.parametrize(("fault", "code"), [(1, "async.read_early"), (2, "async.overwrite")])
def test_bulk_multicast_hazards(kernels: Kernels, fault: int, code: str) -> None:
    given = np.arange(192, dtype=np.uint32)
    run = launch(kernels, instance(kernels, "multicast", fault), 384, given=given)
    assert code in codes(run, "error"), run.findings
    named_at(kernels, run, "multicast", code)


def test_tensor_multicast(kernels: Kernels) -> None:
    size, clusters = 4, 2
    rows = 8 * size * clusters
    given = np.random.default_rng(5).integers(0, 2**32, (rows, 32), np.uint32)
    tensor_map = TensorMap(
        data_type="UINT32", global_address=BufferRef(buffer="in"), global_dim=(32, rows), global_strides_bytes=(128,),
        box_dim=(32, 8), element_strides=(1, 1), swizzle="NONE", oob_fill="NONE",
    )  # fmt: skip
    tile = 8 * size * 32
    for options in SCHEDULES[:5]:
        run = launch(
            kernels,
            "tensor_multicast",
            size * clusters * tile,
            cluster=(size, 1, 1),
            grid=(size * clusters, 1, 1),
            given=given,
            tensor_map=tensor_map,
            smem_bytes=4 * tile,
            options=options,
        )
        out = words(run).reshape(clusters, size, 8 * size, 32)
        tiles = given.reshape(clusters, 8 * size, 32)
        for cta in range(size):
            np.testing.assert_array_equal(out[:, cta], tiles)


# ---- faults


@pytest.mark.parametrize(
    ("kernel", "code", "says"),
    [
        ("never_arrived", "cluster.wait_without_arrive", "has not arrived"),
        ("nobody", "memory.out_of_bounds", "there is no CTA 5 in a cluster of 2"),
        ("not_own", "memory.out_of_bounds", "reaches only the memory of its own CTA"),
        ("split_target", "cluster.mbarrier_elsewhere", "signals an mbarrier of CTA"),
    ],
)
def test_faults(kernels: Kernels, kernel: str, code: str, says: str) -> None:
    run = launch(kernels, kernel, 4)
    assert isinstance(run, Failure) and run.status is Status.RUNTIME_FAULT
    assert run.code == code and says in run.message, run.message
    named_at(kernels, run, kernel, code)


def test_a_mask_beyond_the_cluster(kernels: Kernels) -> None:
    run = launch(kernels, instance(kernels, "multicast", 3), 384, given=np.arange(192, dtype=np.uint32))
    assert isinstance(run, Failure) and run.code == "cluster.bad_mask" and "mask 0x4" in run.message


def test_arriving_twice(kernels: Kernels) -> None:
    run = launch(kernels, "twice", 2)
    assert "cluster.arrived_twice" in codes(run, "error")
    named_at(kernels, run, "twice", "cluster.arrived_twice")


def test_exited_threads_do_not_count(kernels: Kernels) -> None:
    for options in SCHEDULES:
        out = words(launch(kernels, "early_leavers", 64, options=options))
        assert out[:32].tolist() == list(range(32)) and (out[32:] == 0xABABABAB).all()


# ---- determinism


@pytest.mark.parametrize("schedule", ["fair", "lazy", "random"])
def test_threads_change_nothing(kernels: Kernels, schedule: str) -> None:
    given = np.random.default_rng(11).integers(0, 128, (32, 256), np.uint32)

    def run(name: str, threads: int, **more: object) -> tuple[NDArray[np.uint32], object, object]:
        options = RunOptions(schedule=schedule, seed=4, threads=threads)  # type: ignore[arg-type]
        done = launch(kernels, name, 4096, cluster=(4, 1, 1), grid=(32, 1, 1), options=options, **more)  # type: ignore[arg-type]
        assert isinstance(done, Execution)
        return done.buffers["out"].view(np.uint32), done.counts, done.findings

    for name, more in (
        ("histogram", {"given": given, "block": 256}),
        (instance(kernels, "ring", 1), {}),
        (instance(kernels, "ring", 2), {}),
    ):
        one, two = run(name, 1, **more), run(name, 2, **more)
        np.testing.assert_array_equal(one[0], two[0])
        assert one[1:] == two[1:]


def test_counts_cover_every_cta(kernels: Kernels) -> None:
    run = launch(kernels, instance(kernels, "ring", 0), 64 * 8, cluster=(4, 1, 1), grid=(8, 1, 1), options=FAIR)
    assert isinstance(run, Execution)
    arrivals = [c for c in run.counts if c.form.startswith("barrier.cluster.arrive")]
    assert [(c.warp, c.thread) for c in arrivals] == [(16, 512), (16, 512)]
