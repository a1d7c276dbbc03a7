"""A plan from elsewhere is checked again: each broken field is named, and what the recorder made passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ptxgym.build import Build
from ptxgym.plan import LaunchPlan, device_profile, problems, validate
from tests.plan.conftest import Recorder, planned

Edit = tuple[int, tuple[str | int, ...], Any, str]
# Feature to start from, path of the field, its new value, and what the problem says.
EDITS: list[Edit] = [
    (1, ("build_key",), "0" * 64, "belongs to build"),
    (1, ("device_profile",), "b200", "recorded for b200"),
    (1, ("operations", 0, "kernel"), "missing", "no such kernel"),
    (1, ("operations", 0, "grid"), (0, 1, 1), "grid (0, 1, 1)"),
    (1, ("operations", 0, "block"), (1025, 1, 1), "block (1025, 1, 1)"),
    (1, ("operations", 0, "block"), (512, 4, 1), "2048 threads"),
    (1, ("operations", 0, "dynamic_smem_bytes"), 232449, "232449 bytes of shared memory"),
    (1, ("operations", 0, "params"), (), "parameters of ()"),
    (1, ("operations", 0, "params", 0, "data"), "00" * 31, "parameters of (31,)"),
    (1, ("operations", 0, "params", 0, "data"), "zz" * 32, "not hexadecimal"),
    (1, ("operations", 0, "params", 0, "refs", 0, "at"), 28, "overlaps"),
    (1, ("operations", 0, "params", 0, "refs", 1, "at"), 12, "overlaps"),
    (1, ("operations", 0, "params", 0, "refs", 0, "target", "buffer"), "Q", "buffer Q"),
    (1, ("operations", 0, "params", 0, "refs", 0, "target", "offset"), 4097, "offset 4097 of B"),
    (1, ("operations", 0, "params", 0, "refs", 0, "target", "offset"), -1, "offset -1"),
    (1, ("operations", 0, "stream"), -1, "stream -1"),
    (1, ("operations", 0, "stream"), 128, "stream 128"),
    (1, ("operations", 0, "after"), (0,), "operation 0, which is not before it"),
    (5, ("operations", 2, "after"), (2,), "operation 2, which is not before it"),
    (5, ("operations", 2, "after"), (-1,), "operation -1, which is not before it"),
    (5, ("operations", 2, "after"), (0, 0), "does not ascend"),
    (5, ("operations", 2, "after"), (1,), "operation 1 of its own stream"),
    (1, ("buffers", 0, "name"), "B", "share a name"),
    (2, ("buffers", 2, "size_bytes"), 64, "not in the PTX with that size"),
    (3, ("tensor_maps", 0, "swizzle"), "512B", "swizzle '512B'"),
    (3, ("tensor_maps", 0, "data_type"), "FLOAT8", "data type 'FLOAT8'"),
    (3, ("tensor_maps", 0, "box_dim"), (64, 0), "boxDim (64, 0)"),
    (3, ("tensor_maps", 0, "box_dim"), (64,), "has rank 2"),
    (3, ("tensor_maps", 0, "global_dim"), (), "has rank 0"),
    (3, ("tensor_maps", 0, "global_strides_bytes"), (24,), "globalStrides (24,)"),
    (3, ("tensor_maps", 0, "global_address", "offset"), 1 << 40, "of A"),
    (3, ("operations", 0, "params", 0, "refs", 0, "index"), 1, "no tensor map 1"),
    (5, ("operations", 0, "target", "offset"), 32, "no multiple of 64"),
    (5, ("operations", 0, "target", "offset"), 64, "256 bytes at offset 64"),
    (5, ("buffers", 3, "size_bytes"), 5 << 30, "of workspace, more than"),
    (10, ("operations", 0, "cluster"), None, "not the compile-time (2, 1, 1)"),
    (9, ("operations", 0, "cluster"), (3, 1, 1), "cluster (3, 1, 1) with grid (16, 1, 1)"),
    (9, ("operations", 0, "cluster"), (16, 1, 1), "not allowed more than the portable size"),
    (12, ("operations", 0, "width_bytes"), 3, "of 3 bytes"),
    (12, ("operations", 0, "value"), 256, "value 256"),
    (12, ("operations", 0, "count"), 4097, "4097 bytes at offset 0 of B"),
    (14, ("functions", 0, "kernel"), "missing", "attributes of kernel missing"),
    (14, ("functions", 0, "max_dynamic_smem_bytes"), 1 << 40, "1099511627776 bytes of shared memory allowed"),
    (14, ("functions", 0, "max_dynamic_smem_bytes"), -1, "-1 bytes of shared memory allowed"),
    (14, ("functions", 0, "preferred_smem_carveout"), 101, "carve-out of 101 %"),
    (1, ("operations", 0, "params", 0, "data"), " 0" * 32, "not hexadecimal"),
]


@pytest.mark.parametrize("index", range(len(EDITS)))
def test_a_broken_field_is_named(features: Recorder, features_build: Build, index: int) -> None:
    mode, path, value, fragment = EDITS[index]
    plan = planned(features(mode, n=8))
    assert list(problems(plan, features_build, device_profile("h100"))) == []
    document = plan.model_dump()
    place: Any = document
    for step in path[:-1]:
        place[step] = list(place[step]) if isinstance(place[step], tuple) else place[step]
        place = place[step]
    place[path[-1]] = value
    found = list(problems(LaunchPlan.model_validate(document), features_build, device_profile("h100")))
    assert any(fragment in problem for problem in found), found


def test_too_large_a_module(features: Recorder, features_build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(features(1))
    monkeypatch.setattr(validate, "MAX_MODULE_BYTES", 287)  # coefficients and scratch have 32 + 256
    found = list(problems(plan, features_build, device_profile("h100")))
    assert any("bytes of module variables, more than 287" in problem for problem in found), found


def test_too_many_buffers(features: Recorder, features_build: Build) -> None:
    plan = planned(features(1))
    many = plan.model_copy(update={"buffers": plan.buffers * 8192})
    assert any("buffers, more than 8192" in p for p in problems(many, features_build, device_profile("h100")))


@pytest.mark.parametrize(("gib", "refused"), [(5, False), (9, True)])
def test_two_calls_have_a_limit(features: Recorder, features_build: Build, gib: int, refused: bool) -> None:
    """Twice 4 GiB; `EDITS` has 5 GiB in one call."""
    plan = planned(features(1))
    large = plan.buffers[-1].model_copy(update={"name": "workspace9", "role": "workspace", "size_bytes": gib << 30})
    plan = plan.model_copy(update={"buffers": (*plan.buffers, large)})
    found = list(problems(plan, features_build, device_profile("h100"), calls=2))
    assert found == ([f"{gib << 30} bytes of workspace, more than {8 << 30}"] if refused else [])


@pytest.mark.parametrize(("rank", "refused"), [(3, True), (4, False)])
def test_a_cluster_beyond_its_kernels_rank(features: Recorder, features_build: Build, rank: int, refused: bool) -> None:
    plan = planned(features(9))
    kernels = tuple(replace(kernel, max_cluster_rank=rank) for kernel in features_build.kernels)
    found = list(problems(plan, replace(features_build, kernels=kernels), device_profile("h100")))
    assert any("cluster (4, 1, 1) of a kernel for at most 3" in problem for problem in found) == refused, found


def test_too_many_operations(features: Recorder, features_build: Build) -> None:
    plan = planned(features(1))
    many = plan.model_copy(update={"operations": plan.operations * 20_001})
    assert any("20001 operations" in p for p in problems(many, features_build, device_profile("h100")))


def test_too_many_edges(features: Recorder, features_build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(features(5))
    assert list(problems(plan, features_build, device_profile("h100"))) == []
    monkeypatch.setattr(validate, "MAX_EDGES", 0)
    assert list(problems(plan, features_build, device_profile("h100"))) == ["1 waits between streams, more than 0"]
