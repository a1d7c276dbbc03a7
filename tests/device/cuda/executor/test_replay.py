"""The real executor program on a fake driver: what it asks of the driver, in which order, and what comes back."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from ptxgym.device.cuda.executor import EXACT, UNFILLED, Call
from ptxgym.plan.model import Blob, Copy, FunctionAttributes, Memset, PointerRef, TensorMap, TensorMapRef, Upload

from .harness import MIB, Fake, cubin, launch, literal, map_param, plan, pointer, ref

A = np.arange(1000, dtype=np.uint8)
COPY = plan([("A", "input", 1000), ("C", "output", 1000)], launch("copy", pointer("C"), pointer("A"), literal(1000, 8)))


def run(executor, number=0, inputs=None, results=None, **options):  # type: ignore[no-untyped-def]
    called = executor.call(number, inputs or {}, results or {}, timeout_s=20, **options)
    assert isinstance(called, Call), called
    return called


def test_a_copy_kernel_copies_and_is_timed(fake: Fake) -> None:
    out = np.zeros((10, 50), np.uint16)
    with fake.loaded(COPY) as executor:
        called = run(executor, 0, {"A": A}, {"C": out})
        assert executor.ready().l2_bytes == 3 * MIB
        assert not executor.reloads
    assert np.array_equal(out.reshape(-1).view(np.uint8), A)
    assert called.time_us == 31.25
    assert 0 < called.device_wall_us < called.wall_us
    assert called.launches == ("copy",)
    assert fake.log("^context GPU") == ["context GPU-fake"]


def test_addresses_are_fresh_aligned_and_at_the_end_of_their_mapping(fake: Fake) -> None:
    with fake.loaded(COPY) as executor:
        for _ in range(20):
            run(executor, 0, {"A": A}, {"C": np.zeros(1000, np.uint8)})
    targets = [int.from_bytes(bytes.fromhex(line.split()[-3]), "little") for line in fake.log("^launch")]
    sources = [int.from_bytes(bytes.fromhex(line.split()[-2]), "little") for line in fake.log("^launch")]
    assert len({*targets, *sources}) > 36, "of 65,536 places two in forty draws are the same once in eighty runs"
    assert all(address % 512 == 0 for address in (*targets, *sources))
    ends = {int(a, 16) + int(n) for _, _, a, n in (line.split() for line in fake.log("^map private"))}
    assert all(address + 1024 in ends for address in (*targets, *sources))
    assert len(fake.log("^create")) == 3  # two in use, one in change


def test_kernels_see_their_own_buffers_alone(fake: Fake) -> None:
    with fake.loaded(COPY) as executor:
        run(executor, 0, {"A": A}, {"C": np.zeros(1000, np.uint8)})
        run(executor, 0, {"A": A}, {"C": np.zeros(1000, np.uint8)}, flush=True)
    visible = sorted(int(line.split()[2]) for line in fake.log("^visible"))
    assert visible == [2 * MIB] * 4 + [6 * MIB]  # A and C twice, and the flush buffer of the second call


def test_nothing_of_an_earlier_call_can_be_read(fake: Fake) -> None:
    buffers = [("A", "input", 4096), ("C", "output", 16), ("workspace0", "workspace", 4096)]
    keep = launch("copy", pointer("workspace0"), pointer("A"), literal(4096, 8))
    look = launch("scan", pointer("C"), literal(0x5C, 4))
    secret, other = np.full(4096, 0x5C, np.uint8), np.full(4096, 0x11, np.uint8)
    seen = np.zeros(16, np.uint8)
    with fake.loaded(plan(buffers, keep, look)) as executor:
        run(executor, 0, {"A": secret}, {"C": seen})
        assert seen[0] == 1  # the control: the scan finds what is there
        for _ in range(5):
            run(executor, 0, {"A": other}, {"C": seen})
            assert seen[0] == 0


def test_workspaces_and_outputs_are_poisoned_and_inputs_come_back(fake: Fake) -> None:
    buffers = [("A", "input", 6), ("C", "output", 8), ("D", "output", 8), ("W", "workspace", 8), ("E", "output", 3)]
    spoil = launch("poke", pointer("A"), literal(2, 8), literal(99, 4))
    show = launch("copy", pointer("D"), pointer("W"), literal(8, 8))
    given = np.array([1, 2, 3, 4, 5, 6], np.uint8)
    results = {"A": np.zeros(6, np.uint8), "C": np.zeros(2, np.uint32), "D": np.zeros(8, np.uint8)}
    results["E"] = np.zeros(3, np.uint8)
    with fake.loaded(plan(buffers, spoil, show)) as executor:
        run(executor, 0, {"A": given}, results, poison={"C": np.uint32(0x7FDBABED), "D": np.uint16(0x7FDB)})
    assert results["A"].tolist() == [1, 2, 99, 4, 5, 6]
    assert given.tolist() == [1, 2, 3, 4, 5, 6]
    assert results["C"].tolist() == [0x7FDBABED] * 2
    assert results["D"].tolist() == [0xFF] * 8
    assert results["E"].tolist() == [0xFF] * 3
    assert fake.log("^memset16 .* 7fdb 4 ")


def test_module_memory_starts_every_call_as_it_was_loaded(fake: Fake) -> None:
    image = cubin({".nv.global": (8, [("zeros", 0, 8, 0)]), ".nv.global.init": (16, [("sevens", 0, 16, 0)])})
    script = ["section 8 0", "section 16 7", "variable zeros 0 0 8", "variable sevens 1 0 16"]
    bumped = plan([("C", "output", 2)], launch("bump", pointer("C")))
    out = np.zeros(2, np.uint8)
    with fake.loaded(bumped, script=script, image=image) as executor:
        for _ in range(3):
            run(executor, 0, {}, {"C": out})
            assert out.tolist() == [0, 7]
        assert not executor.reloads
    assert len(fake.log("^load")) == 1


def test_a_module_with_a_variable_that_has_no_name_is_loaded_for_every_call(fake: Fake) -> None:
    image = cubin({".nv.global": (8, [("hidden", 0, 4, 0)])})
    bumped = plan([("C", "output", 2)], launch("bump", pointer("C")))
    out = np.zeros(2, np.uint8)
    with fake.loaded(bumped, script=["section 8 0"], image=image) as executor:
        for _ in range(3):
            run(executor, 0, {}, {"C": out})
            assert out.tolist() == [0, 255]
        assert executor.reloads
    assert len(fake.log("^load")) == 3


def test_a_module_that_is_loaded_anew_gets_its_attributes_anew(fake: Fake) -> None:
    image = cubin({".nv.global": (8, [("hidden", 0, 4, 0)])})
    wide = FunctionAttributes(kernel="nothing", max_dynamic_smem_bytes=99000)
    steps = plan([], launch("nothing", literal(0, 128), literal(0, 8)), functions=[wide])
    with fake.loaded(steps, script=["section 8 0"], image=image) as executor:
        for _ in range(3):
            run(executor)
        assert executor.reloads
    told = [line.split()[0] for line in fake.log("^load|^attribute|^launch")]
    assert told == ["load", "attribute", "launch"] * 3


def test_a_launch_gets_its_shape_attributes_and_patched_parameters(fake: Fake) -> None:
    tensor_map = TensorMap(
        data_type="BFLOAT16", global_address=ref("A", 64), global_dim=(64, 8), global_strides_bytes=(128,),
        box_dim=(64, 4), element_strides=(1, 2), swizzle="128B", l2_promotion="L2_256B",
        oob_fill="NAN_REQUEST_ZERO_FMA",
    )  # fmt: skip
    struct = Blob(
        data="11" * 8 + "00" * 8 + "22" * 112, refs=(PointerRef(at=8, target=ref("A", 1088)),)
    )  # one past the end of A
    shaped = plan(
        [("A", "input", 1088)],
        launch("nothing", map_param(0), pointer("A", 16), grid=(4, 2, 3), block=(64, 2, 1), dynamic_smem_bytes=70000),
        launch("nothing", struct, pointer("A"), grid=(4, 1, 1), cluster=(4, 1, 1), cooperative=True),
        launch("copy_clustered", pointer("A"), pointer("A"), literal(1, 8), grid=(2, 1, 1), cluster=(2, 1, 1)),
        maps=[tensor_map],
        functions=[
            FunctionAttributes(kernel="nothing", max_dynamic_smem_bytes=70000, preferred_smem_carveout=50,
                               non_portable_cluster=True),
        ],
    )  # fmt: skip
    with fake.loaded(shaped) as executor:
        run(executor, 0, {"A": np.zeros(1088, np.uint8)})
    first, second, third = (line.split() for line in fake.log("^launch"))
    address = int.from_bytes(bytes.fromhex(first[-1]), "little") - 16
    assert first[1:7] == ["nothing", "grid=4,2,3", "block=64,2,1", "smem=70000", first[5], first[6]]
    assert first[6][:16] == (address + 64).to_bytes(8, "little").hex()
    assert first[6][16:] == "77" * 120
    assert second[6:8] == ["cluster=4,1,1", "cooperative"]
    assert second[8] == "11" * 8 + (address + 1088).to_bytes(8, "little").hex() + "22" * 112
    assert third[6].startswith(address.to_bytes(8, "little").hex())  # no attribute: the cluster is compiled in
    encoded = f"encode type=9 address={address + 64:x} dims=64,8 strides=128 box=64,4 steps=1,2 enums=0,3,3,1"
    assert fake.log("^encode") == [encoded]
    # CUfunction_attribute of cuda.h: 8 dynamic shared memory, 9 carve-out, 14 non-portable clusters.
    assert fake.log("^attribute") == ["attribute nothing 8 70000", "attribute nothing 9 50", "attribute nothing 14 1"]


def test_attributes_of_one_plan_do_not_stay_for_the_next(fake: Fake) -> None:
    empty = launch("nothing", literal(0, 128), literal(0, 8))
    wide = plan([], empty, functions=[FunctionAttributes(kernel="nothing", max_dynamic_smem_bytes=99000)])
    with fake.loaded(plan([], empty), wide) as executor:
        run(executor, 0)
        run(executor, 1)
        run(executor, 1)
    values = [line.split()[-1] for line in fake.log("^attribute nothing 8|^launch")]
    assert values[:3] == ["99000", "0", values[2]]
    assert [v for v in values if len(v) < 8] == ["99000", "0", "99000"]


def test_operations_run_in_order_with_constants_before_the_first_event(fake: Fake) -> None:
    data = Blob(data="0102030400000000" + "00" * 8, refs=(PointerRef(at=8, target=ref("C")),))
    steps = plan(
        [("C", "output", 64), ("W", "workspace", 64)],
        Upload(target=ref("W"), data=data),  # set-up
        Memset(target=ref("W", 32), value=0xAB, width_bytes=2, count=3),
        Upload(target=ref("W", 34), data=literal(0x55, 1)),  # after what it overwrites
        launch("copy", pointer("C"), pointer("W"), literal(40, 8)),
        Upload(target=ref("W", 60), data=literal(0x66, 1)),  # after a launch
        Copy(target=ref("C", 60), source=ref("W", 60), size_bytes=1),
        Memset(target=ref("C", 61), value=7, width_bytes=1, count=3),
        Memset(target=ref("C", 40), value=0xDEADBEEF, width_bytes=4, count=1),
    )
    out = np.zeros(64, np.uint8)
    with fake.loaded(steps) as executor:
        run(executor, 0, {}, {"C": out})
    kinds = [line.split()[0] for line in fake.timed()]
    assert kinds == ["record", "memset16", "copy", "launch", "copy", "copy", "memset8", "memset32", "record"]
    assert out[:4].tolist() == [1, 2, 3, 4]
    assert out[8:16].tobytes() == bytes.fromhex(fake.log("^launch")[0].split()[-3])  # C, as the kernel got it
    assert out[32:38].tolist() == [0xAB, 0, 0x55, 0, 0xAB, 0]
    assert out[60:].tolist() == [0x66, 7, 7, 7]
    assert out[40:44].tobytes() == bytes.fromhex("efbeadde")


def test_uploads_to_a_variable_come_after_it_is_restored(fake: Fake) -> None:
    image = cubin({".nv.global": (8, [("table", 0, 8, 0)])})
    steps = plan(
        [("table", "symbol", 8), ("C", "output", 8)],
        Upload(target=ref("table", 4), data=literal(9, 4)),
        Copy(target=ref("C"), source=ref("table"), size_bytes=8),
        launch("bump", pointer("C", 7)),
    )
    out = np.zeros(2, np.uint32)
    with fake.loaded(steps, script=["section 8 0", "variable table 0 0 8"], image=image) as executor:
        for _ in range(2):
            run(executor, 0, {}, {"C": out})
            assert (out & 0xFFFFFF).tolist() == [0, 9]


def test_a_tensor_map_in_an_upload_is_encoded_for_this_call(fake: Fake) -> None:
    tensor_map = TensorMap(
        data_type="UINT8", global_address=ref("A"), global_dim=(16,), global_strides_bytes=(), box_dim=(16,),
        element_strides=(1,),
    )  # fmt: skip
    upload = Upload(target=ref("C"), data=Blob(data="00" * 128, refs=(TensorMapRef(at=0, index=0),)))
    out = np.zeros(128, np.uint8)
    buffers = [("A", "input", 16), ("C", "workspace", 128)]
    with fake.loaded(plan(buffers, upload, maps=[tensor_map])) as executor:
        run(executor, 0, {"A": np.zeros(16, np.uint8)}, {"C": out})
    assert f"address={int.from_bytes(out[:8].tobytes(), 'little'):x} dims=16 box=16" in fake.log("^encode")[0]


def test_streams_fork_wait_and_join(fake: Fake) -> None:
    def step(stream: int, *after: int) -> Memset:
        return Memset(target=ref("W"), value=stream, width_bytes=1, count=1, stream=stream, after=after)

    steps = plan([("W", "workspace", 4)], step(0), step(3, 0), step(5), step(0, 1), step(3, 2, 1))
    with fake.loaded(steps) as executor:
        run(executor)
    words = [line.split() for line in fake.timed()]
    main = words[0][1]
    streams = {value: line[line.index("stream") + 1] for line in words if line[0] == "memset8" for value in [line[2]]}
    assert streams["0"] == main
    assert len(set(streams.values())) == 3
    names = {main: "main", streams["3"]: "three", streams["5"]: "five"}
    events: dict[str, str] = {}
    told = []
    for line in words[1:-1]:
        if line[0] == "memset8":
            told.append(names[line[-1]])
        else:
            event = events.setdefault(line[3], f"e{len(events)}")
            told.append(f"{line[0]} {names[line[1]]} {event}")
    assert told == [
        "record main e0", "wait three e0", "wait five e0",  # fork
        "main", "record main e1",
        "wait three e1", "three", "record three e2",
        "five", "record five e3",
        "wait main e2", "main",
        "wait three e3", "three",  # what precedes it in its own stream needs no event
        "record three e4", "wait main e4", "record five e5", "wait main e5",  # join
    ]  # fmt: skip
    assert words[-1][:2] == ["record", main]


def test_programmatic_launches_follow_launches_of_their_stream_alone(fake: Fake) -> None:
    one = launch("copy", pointer("C"), pointer("C"), literal(1, 8), programmatic=True)
    other = one.model_copy(update={"stream": 4})
    fill = Memset(target=ref("C"), value=0, width_bytes=1, count=1)
    steps = plan(
        [("C", "output", 4)],
        one,  # 0: nothing before it
        one,  # 1: yes
        fill,
        one,  # 3: behind a fill
        other,  # 4: first of its stream
        other,  # 5: yes
        other.model_copy(update={"after": (3,)}),  # 6: waits for another stream
        one,  # 7: an event lies behind operation 3
        one.model_copy(update={"programmatic": False}),  # 8
        one,  # 9: yes
    )
    with fake.loaded(steps) as executor:
        run(executor)
    marked = [line.count("programmatic") for line in fake.log("^launch")]
    assert marked == [0, 1, 0, 0, 1, 0, 0, 0, 1]


def test_flush_precedes_the_first_event_and_nothing_comes_between(fake: Fake) -> None:
    with fake.loaded(COPY) as executor:
        run(executor, 0, {"A": A}, {}, flush=True)
        flushed = fake.timed()
        run(executor, 0, {"A": A}, {})
        plain = fake.timed()
    assert [line.split()[0] for line in flushed] == ["hold", "memset32", "record", "launch", "record"]
    assert int(flushed[1].split()[3]) * 4 == 6 * MIB
    assert [line.split()[0] for line in plain] == ["record", "launch", "record"]
    assert len(fake.log("^reset_persisting")) == 2


def test_the_gpu_begins_when_all_is_enqueued(fake: Fake) -> None:
    with fake.loaded(COPY) as executor:
        for _ in range(3):
            run(executor, 0, {"A": A}, {}, flush=True)
        words = [line.split()[0] for line in fake.log("^hold|^launch|^opened")]
    assert words == ["hold", "launch", "opened"] * 3


def test_the_gpu_begins_before_the_driver_can_hold_no_more(fake: Fake) -> None:
    fills = [Memset(target=ref("A"), value=0, width_bytes=1, count=1) for _ in range(300)]
    with fake.loaded(plan([("A", "input", 1000)], *fills)) as executor:
        run(executor, 0, {"A": A}, {}, flush=True)
    timed = fake.timed()
    assert timed.count("opened") == 1
    assert sum(line.startswith("memset8") for line in timed[: timed.index("opened")]) == 128


def test_waits_between_streams_count_among_what_the_driver_holds(fake: Fake) -> None:
    """Each of the later fills waits for sixteen streams: far more commands than steps."""
    fills = [Memset(target=ref("A"), value=0, width_bytes=1, count=1, stream=number + 1) for number in range(16)]
    waiting = fills[0].model_copy(update={"stream": 0, "after": tuple(range(16))})
    with fake.loaded(plan([("A", "input", 1000)], *fills, *[waiting] * 100)) as executor:
        run(executor, 0, {"A": A}, {}, flush=True)
    timed = [line.split()[0] for line in fake.timed()]
    held = timed[timed.index("hold") + 1 : timed.index("opened")]
    assert 400 < len(held) <= 520 and held.count("memset8") < 128
    assert timed.count("opened") == 1 and timed.count("memset8") == 116


def test_gpus_that_cannot_wait_for_memory_are_not_asked_to(fake: Fake) -> None:
    with fake.loaded(COPY, env={"FAKE_CUDA_NO_GATE": "1"}) as executor:
        run(executor, 0, {"A": A}, {}, flush=True)
    assert [line.split()[0] for line in fake.timed()] == ["memset32", "record", "launch", "record"]


@pytest.mark.parametrize(("env", "within"), [({}, False), ({"FAKE_CUDA_NO_GATE": "1"}, True)], ids=["gate", "none"])
def test_the_hosts_clock_starts_before_the_gpu_may_begin(fake: Fake, env: dict[str, str], within: bool) -> None:
    """Events must fit into it. What is launched behind no gate may run while the rest of a long plan is enqueued."""
    with fake.loaded(plan([], *[launch("doze", literal(10, 4))] * 20), env=env) as executor:
        called = executor.call(0, {}, {}, timeout_s=20, flush=True)
    assert isinstance(called, Call)
    assert (called.device_wall_us >= 20 * 10_000) is within


def test_the_profiler_sees_the_operations_alone(fake: Fake) -> None:
    with fake.loaded(COPY) as executor:
        run(executor, 0, {"A": A}, {"C": np.zeros(1000, np.uint8)}, profile=True)
    lines = fake.log("^profiler|^launch|^upload|^copy|^memset")
    start, stop = lines.index("profiler_start"), lines.index("profiler_stop")
    assert [line.split()[0] for line in lines[start + 1 : stop]] == ["launch"]


def test_shapes_of_different_plans_do_not_pile_up_memory(fake: Fake) -> None:
    plans = [plan([("C", "output", size * MIB)], launch("scan", pointer("C"), literal(1, 4))) for size in (2, 4, 6)]
    with fake.loaded(*plans) as executor:
        for number, _ in itertools.product(range(3), range(2)):
            run(executor, number)
    created, released = (sum(int(line.split()[1]) for line in fake.log(f"^{verb} ")) for verb in ("create", "release"))
    assert created == 2 * (2 + 4 + 6) * MIB
    assert released >= 2 * (2 + 4) * MIB


def test_shared_and_local_memory_are_overwritten_before_every_call(fake: Fake) -> None:
    with fake.loaded(COPY) as executor:
        for _ in range(2):
            run(executor, 0, {"A": A})
    assert [line.split()[0] for line in fake.log("^residue|^launch")] == ["residue", "launch"] * 2
    # Two blocks on each of 7 multiprocessors share their 233,472 bytes, less the driver's 1,024 for each.
    assert fake.log("^residue")[0] == "residue grid=14 block=1024 smem=115712"
    assert fake.log("^frame") == ["frame 16"]


def test_the_gpu_knows_where_all_pages_lie_when_a_call_begins(fake: Fake) -> None:
    with fake.loaded(COPY) as executor:
        run(executor, 0, {"A": A}, {})
    lines = fake.log("^map private|^unmap|^translations|^launch")
    last = max(index for index, line in enumerate(lines) if line.startswith("launch"))
    mapped = {tuple(line.split()[2:4]) for line in lines if line.startswith("map private")}
    loaded = {tuple(line.split()[3:5]) for line in lines[last - 2 : last]}
    assert loaded == {(address.removeprefix("0x"), size) for address, size in mapped}
    assert all(line.startswith("translations grid=7 block=32 ") for line in lines[last - 2 : last])


def test_stack_frames_are_overwritten_as_far_as_kernels_reach(fake: Fake) -> None:
    for stack_bytes, frame_bytes in ((8, 1024), (5001, 5008)):
        build = fake.build()
        deep = tuple(replace(kernel, stack_bytes=stack_bytes) for kernel in build.kernels)
        with fake.start() as executor:
            assert executor.load(replace(build, kernels=deep), [COPY]) is None
        assert fake.log("^frame") == [f"frame {frame_bytes}"]


def test_exact_allocations_for_sanitizers(fake: Fake) -> None:
    out = np.zeros(1000, np.uint8)
    with fake.loaded(COPY, env=EXACT) as executor:
        run(executor, 0, {"A": A}, {"C": out})
    assert np.array_equal(out, A)
    assert fake.log("^allocate|^free$|^map private") == ["allocate 1000", "allocate 1000", "free", "free"]


def test_unfilled_outputs_and_workspaces_for_sanitizers(fake: Fake) -> None:
    with fake.loaded(COPY, env=UNFILLED) as executor:
        run(executor, 0, {"A": A}, poison={"C": np.uint16(0x7FDB)})
    assert fake.log("^memset16") == []
