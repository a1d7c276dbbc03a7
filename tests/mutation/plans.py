"""Mutation operators on the launch plan: what the host code got wrong. The PTX stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ptxgym.plan.model import Launch, LaunchPlan, TensorMap


@dataclass(frozen=True)
class PlanMutant:
    """One changed plan."""

    operator: str
    detail: str
    plan: LaunchPlan
    map_index: int | None
    """The tensor map that was changed."""


def plan_mutants(plan: LaunchPlan) -> Iterator[PlanMutant]:
    """Yield every mutant of every tensor map and launch of a plan."""
    for index, tensor_map in enumerate(plan.tensor_maps):
        for operator, detail, changed in _map_mutants(tensor_map):
            maps = (*plan.tensor_maps[:index], changed, *plan.tensor_maps[index + 1 :])
            yield PlanMutant(operator, f"map {index}: {detail}", plan.model_copy(update={"tensor_maps": maps}), index)
    for index, operation in enumerate(plan.operations):
        if isinstance(operation, Launch):
            for operator, detail, launch in _launch_mutants(operation):
                operations = (*plan.operations[:index], launch, *plan.operations[index + 1 :])
                yield PlanMutant(operator, detail, plan.model_copy(update={"operations": operations}), None)


def _map_mutants(tensor_map: TensorMap) -> Iterator[tuple[str, str, TensorMap]]:
    for swizzle in ("NONE", "32B", "64B", "128B"):
        if swizzle != tensor_map.swizzle and not (swizzle == "NONE" and tensor_map.swizzle == "NONE"):
            yield "map.swizzle", f"swizzle {swizzle}", tensor_map.model_copy(update={"swizzle": swizzle})
    inner, *outer = tensor_map.box_dim
    yield "map.box", "half as many rows", tensor_map.model_copy(update={"box_dim": (inner, outer[0] // 2, *outer[1:])})
    yield "map.box", "half as wide", tensor_map.model_copy(update={"box_dim": (inner // 2, *outer)})
    if outer[0] * 2 <= 256:
        yield "map.box", "twice the rows", tensor_map.model_copy(update={"box_dim": (inner, outer[0] * 2, *outer[1:])})
    width, height = tensor_map.global_dim[0], tensor_map.global_dim[1]
    yield "map.bounds", "one box of rows less", _dims(tensor_map, width, height - outer[0])
    yield "map.bounds", "one box of columns less", _dims(tensor_map, width - inner, height)
    stride = tensor_map.global_strides_bytes[0]
    changed = (stride - 16, *tensor_map.global_strides_bytes[1:])
    yield "map.stride", "16 bytes less", tensor_map.model_copy(update={"global_strides_bytes": changed})


def _dims(tensor_map: TensorMap, width: int, height: int) -> TensorMap:
    return tensor_map.model_copy(update={"global_dim": (width, height, *tensor_map.global_dim[2:])})


def _launch_mutants(launch: Launch) -> Iterator[tuple[str, str, Launch]]:
    for less in (1024, launch.dynamic_smem_bytes // 2):
        smaller = launch.dynamic_smem_bytes - less
        if 0 <= smaller < launch.dynamic_smem_bytes:
            yield "launch.smem", f"{less} bytes less", launch.model_copy(update={"dynamic_smem_bytes": smaller})
    grid = launch.grid
    if grid[1] > 1:
        yield (
            "launch.grid",
            "one row of tiles less",
            launch.model_copy(update={"grid": (grid[0], grid[1] - 1, grid[2])}),
        )
    if launch.block[0] > 128:
        yield "launch.block", "one warpgroup less", launch.model_copy(update={"block": (launch.block[0] - 128, 1, 1)})
