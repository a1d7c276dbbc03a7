"""Occupancy against what an H200 answered for the same kernel, and against the rules worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ptxgym.build import Build
from ptxgym.plan import device_profile, record
from tests.plan.conftest import ARGUMENTS, LIMITS, Recorder, planned

# cudaOccupancyMaxActiveBlocksPerMultiprocessor on an H200 (driver 580.95), for a kernel of few registers. Rows as in
# features.cu; the last three by hand: 2048 threads ÷ 1024; 33 threads take 2 warps, 64 warps ÷ 2 = 32 = the CTA limit;
# 3 warps: 64 ÷ 3 = 21.
MEASURED = [16, 16, 4, 0, 3, 2, 2, 1, 1, 2, 32, 21]


@pytest.mark.parametrize("row", range(len(MEASURED)))
def test_blocks_per_sm(features: Recorder, features_build: Build, row: int) -> None:
    kernel = next(k for k in features_build.kernels if "dynamic" in k.name)
    assert kernel.registers <= 32  # more would be the limit in some rows
    (launch,) = planned(features(19, n=row)).launches
    assert launch.grid[0] - 1 == MEASURED[row]


def test_available_shared_memory(features: Recorder) -> None:
    (launch,) = planned(features(19, n=4)).launches
    # The H200 says 233,472 ÷ 2 here, although 1,024 bytes of each half are the driver's.
    assert int.from_bytes(launch.params[2].raw, "little") == 116736


# cudaOccupancyMaxActiveClusters on an H200, one CTA per SM.
@pytest.mark.parametrize(("ctas", "clusters"), [(1, 132), (2, 66), (4, 30), (8, 15), (16, 7)])
def test_clusters(features: Recorder, ctas: int, clusters: int) -> None:
    (launch,) = planned(features(20, n=ctas)).launches
    assert launch.grid == (clusters, 16, 1)


@pytest.mark.parametrize(
    ("rank", "cluster", "potential"), [(None, None, 16), (2, None, 2), (32, None, 16), (None, (4, 1, 1), 4)]
)
def test_potential_clusters_are_those_that_may_be_launched(
    features_build: Build, rank: int | None, cluster: tuple[int, int, int] | None, potential: int
) -> None:
    """Not more than `__launch_bounds__` allows; what `__cluster_dims__` demands."""
    kernels = tuple(
        replace(kernel, max_cluster_rank=rank, cluster=cluster) if "dynamic" in kernel.name else kernel
        for kernel in features_build.kernels
    )
    changed, axes = replace(features_build, kernels=kernels), {"mode": 20, "n": cluster[0] if cluster else 2}
    (launch,) = planned(record(changed, ARGUMENTS, axes, device_profile("h100"), limits=LIMITS)).launches
    assert launch.grid[1] == potential
