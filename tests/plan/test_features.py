"""Every call that honest host code makes becomes the right entry of the plan."""

from __future__ import annotations

import struct

import pytest

from ptxgym.build import Build
from ptxgym.plan.model import (
    BufferRef,
    Copy,
    FunctionAttributes,
    LaunchPlan,
    Memset,
    PointerRef,
    TensorMapRef,
    Upload,
)
from tests.plan.conftest import Recorder, planned


def pointer(at: int, buffer: str, offset: int = 0) -> PointerRef:
    """A reference to a buffer."""
    return PointerRef(at=at, target=BufferRef(buffer=buffer, offset=offset))


def test_triple_chevron_of_template_and_static_kernels(features: Recorder) -> None:
    first, second = planned(features(0)).launches
    assert "templatedILi3EE" in first.kernel and "fixed" in second.kernel
    assert (first.grid, first.block, first.dynamic_smem_bytes, first.stream) == ((2, 3, 1), (32, 2, 1), 64, 0)
    assert first.params[0].refs == (pointer(0, "B"),)
    assert second.params[0].refs == (pointer(0, "B", 20),)
    assert first.cluster is None and not first.cooperative and not first.programmatic


def test_padding_of_a_struct_is_no_part_of_the_plan(features: Recorder) -> None:
    (launch,) = planned(features(1)).launches
    assert launch.params[0].raw == struct.pack("<B7xQH6xQ", 1, 0, 7, 0)
    assert launch.params[0].refs == (pointer(8, "B", 8), pointer(24, "A"))


def test_module_variables(features: Recorder) -> None:
    plan = planned(features(2))
    upload, memset, launch, again, last = plan.operations
    assert {b.name: b.size_bytes for b in plan.buffers if b.role == "symbol"} == {"coefficients": 32, "scratch": 256}
    assert isinstance(upload, Upload) and upload.target == BufferRef(buffer="coefficients")
    assert upload.data.raw == struct.pack("<8f", *range(1, 9))
    assert isinstance(memset, Memset)
    assert (memset.target.buffer, memset.count, memset.width_bytes) == ("scratch", 256, 1)
    assert isinstance(again, Upload) and again.target == BufferRef(buffer="coefficients", offset=16)
    assert launch.kind == last.kind == "launch"
    assert last.params[0].refs == (pointer(0, "scratch", 12),)


def test_memory_comes_from_the_devices_pool(features: Recorder) -> None:
    plan = planned(features(22))
    (launch,) = plan.launches
    assert launch.params[0].refs == (pointer(0, "workspace0"),) and launch.grid == (1, 1, 1)
    assert {ignored.split(" ")[0] for ignored in plan.ignored_calls} == {"cudaMemPoolSetAttribute", "cuMemPoolTrimTo"}


def test_tensor_map_as_parameter(features: Recorder) -> None:
    plan = planned(features(3, n=24))
    (tensor_map,) = plan.tensor_maps
    assert tensor_map.data_type == "BFLOAT16" and tensor_map.global_address == BufferRef(buffer="A")
    assert (tensor_map.global_dim, tensor_map.global_strides_bytes) == ((64, 24), (128,))
    assert (tensor_map.box_dim, tensor_map.element_strides) == ((64, 8), (1, 1))
    assert (tensor_map.swizzle, tensor_map.l2_promotion, tensor_map.interleave) == ("128B", "L2_128B", "NONE")
    assert plan.launches[0].params[0].refs == (TensorMapRef(at=0, index=0),)
    assert plan.launches[0].params[0].raw == bytes(128)


def test_tensor_map_in_a_struct(features: Recorder) -> None:
    plan = planned(features(4, n=8))
    assert plan.tensor_maps[0].global_address == BufferRef(buffer="A", offset=64)
    (blob,) = plan.launches[0].params
    assert blob.refs == (TensorMapRef(at=128, index=0), pointer(256, "B"))
    assert blob.raw[:4] == (8).to_bytes(4, "little")


def test_tensor_maps_and_pointers_in_uploads(features: Recorder) -> None:
    plan = planned(features(5))
    maps, table, launch = plan.operations
    assert isinstance(maps, Upload) and maps.data.refs == (TensorMapRef(at=0, index=0), TensorMapRef(at=128, index=1))
    assert isinstance(table, Upload)
    assert table.data.refs == (pointer(0, "A"), pointer(8, "A", 64), pointer(16, "B"))
    assert launch.kind == "launch"
    assert [blob.refs for blob in launch.params] == [
        (pointer(0, "workspace0", 128),),
        (pointer(0, "workspace1"),),
        (pointer(0, "B"),),
    ]


@pytest.mark.parametrize("mode", [6, 7, 8, 23])
def test_tensor_map_through_an_entry_point(features: Recorder, mode: int) -> None:
    assert planned(features(mode)).tensor_maps == planned(features(3, n=64)).tensor_maps


def test_launch_attributes(features: Recorder) -> None:
    (launch,) = planned(features(9)).launches
    assert (launch.cluster, launch.programmatic, launch.dynamic_smem_bytes) == ((4, 1, 1), True, 512)


def test_compile_time_cluster(features: Recorder) -> None:
    assert planned(features(10)).launches[0].cluster == (2, 1, 1)


def test_cooperative_launch(features: Recorder) -> None:
    (launch,) = planned(features(11, n=132)).launches
    assert launch.cooperative and launch.grid == (132, 1, 1)


def test_fills_and_copies(features: Recorder) -> None:
    operations = planned(features(12)).operations
    fills = [(op.target.offset, op.value, op.width_bytes, op.count) for op in operations if isinstance(op, Memset)]
    assert fills == [
        (0, 0xFF, 1, 64),
        *((64 + 32 * row, 7, 1, 8) for row in range(3)),
        (256, 9, 1, 64),
        (0, 1, 1, 5),
        (2, 0xBEEF, 2, 6),
        (4, 0xDEADBEEF, 4, 7),
    ]
    copies = [(op.target, op.source, op.size_bytes) for op in operations if isinstance(op, Copy)]
    into = BufferRef(buffer="B", offset=32)
    assert copies == [
        (into, BufferRef(buffer="A"), 32),
        (into, BufferRef(buffer="A", offset=4), 16),
        (BufferRef(buffer="B"), BufferRef(buffer="A"), 12),
    ]


def test_streams_and_events_are_order(features: Recorder) -> None:
    launches = planned(features(13)).launches
    assert [launch.params[2].raw[0] for launch in launches] == [1, 2, 3]
    assert [(launch.stream, launch.after) for launch in launches] == [(0, ()), (3, (0,)), (1, (0,))]


def test_driver_launches(features: Recorder) -> None:
    plan = planned(features(14))
    first, second = plan.launches
    assert (first.dynamic_smem_bytes, first.block, first.cluster) == (65536, (64, 1, 1), None)
    assert (second.grid, second.cluster) == ((4, 1, 1), (2, 1, 1))
    assert plan.functions == (FunctionAttributes(kernel=first.kernel, max_dynamic_smem_bytes=65536),)


@pytest.mark.parametrize(("profile", "sms", "major", "l2"), [("h100", 132, 9, 50 << 20), ("h200", 132, 9, 62914560)])
def test_device_queries(features: Recorder, profile: str, sms: int, major: int, l2: int) -> None:
    by_runtime, by_driver, by_function = planned(features(15, profile=profile)).launches
    assert (by_runtime.grid, by_runtime.block) == ((sms, 1, 1), (major, 32, 1))
    assert int.from_bytes(by_runtime.params[2].raw, "little") == 232448
    assert by_driver.grid == (sms, sms, 1)
    assert int.from_bytes(by_driver.params[2].raw, "little") == l2
    assert by_function.grid == (1024, 2, 1)  # device memory is type 2, unregistered host memory 0
    assert int.from_bytes(by_function.params[2].raw, "little") == 49152


def test_last_error(features: Recorder) -> None:
    first, second = planned(features(16)).launches
    assert (first.grid, first.block[0]) == ((1, 1, 1), 32)  # cudaErrorInvalidValue is 1; cleared once it was got
    assert int.from_bytes(first.params[2].raw, "little") == len("invalid argument")
    assert second.grid == (1, 13, 1)  # cudaErrorInvalidSymbol is 13
    assert int.from_bytes(second.params[2].raw, "little") == len("CUDA_ERROR_INVALID_VALUE")


def test_workspaces_are_distinct_buffers(features: Recorder) -> None:
    plan = planned(features(17, n=100))
    sizes = {b.name: b.size_bytes for b in plan.buffers if b.role == "workspace"}
    assert sizes == {"workspace0": 400, "workspace1": 1000, "workspace2": 1000}
    used = [blob.refs[0].target.buffer for launch in plan.launches for blob in launch.params[:2] if blob.refs]
    assert used == ["A", "workspace0", "A", "workspace1", "workspace2", "B"]


def test_plain_host_code(features: Recorder) -> None:
    upload, launch = planned(features(18, n=10)).operations
    assert isinstance(upload, Upload) and upload.data.raw == struct.pack("<10i", *(i * i for i in range(10)))
    assert launch.kind == "launch" and launch.params[2].raw == (81).to_bytes(4, "little")


def test_one_past_the_end_is_an_address(features: Recorder) -> None:
    (launch,) = planned(features(21)).launches
    assert launch.params[1].refs == (pointer(0, "B", 4096),)


def test_plans_are_equal_from_run_to_run_and_between_builds(features: Recorder, features_build: Build) -> None:
    once, twice = planned(features(1)), planned(features(1))
    assert once == twice and once.hash == twice.hash
    anonymous = planned(features(0))
    name = anonymous.launches[0].kernel
    start = name.index("_GLOBAL__N__") + len("_GLOBAL__N__")
    other = anonymous.model_dump_json().replace(name[start : start + 8], "0123abcd")
    elsewhere = LaunchPlan.model_validate_json(other)
    assert elsewhere != anonymous and elsewhere.hash == anonymous.hash
    assert features_build.key == anonymous.build_key
