"""Plans through the device and its worker processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ptxgym import native
from ptxgym.build.model import Build, KernelResources
from ptxgym.cache import Cache
from ptxgym.device.emulator import tensor_map
from ptxgym.device.emulator.core import PlacedBuffer
from ptxgym.device.emulator.device import EmulatorDevice, resident_ctas_per_sm
from ptxgym.device.emulator.placement import place, zeros
from ptxgym.device.emulator.pool import Worker
from ptxgym.device.emulator.session import Memory, move
from ptxgym.device.protocol import Bytes, Execution, RunOptions
from ptxgym.errors import InfrastructureError, UsageError, WorkerDied
from ptxgym.plan.model import (
    Blob,
    Buffer,
    BufferRef,
    Copy,
    Launch,
    LaunchPlan,
    Memset,
    Operation,
    PointerRef,
    TensorMap,
    TensorMapRef,
    Upload,
)
from ptxgym.verdict import Failure, Severity, Status

N = 1024


def pointer(buffer: str, offset: int = 0) -> Blob:
    return Blob(data="00" * 8, refs=(PointerRef(at=0, target=BufferRef(buffer=buffer, offset=offset)),))


def literal(form: str, *values: object) -> Blob:
    return Blob(data=struct.pack(form, *values).hex())


def launch(kernel: str, *params: Blob, grid: int = 1, block: int = 32, **more: object) -> Launch:
    return Launch(kernel=kernel, grid=(grid, 1, 1), block=(block, 1, 1), dynamic_smem_bytes=0, params=params, **more)  # type: ignore[arg-type]


def plan(*operations: Operation, workspace: int = 0, maps: tuple[TensorMap, ...] = (), n: int = N) -> LaunchPlan:
    buffers = [Buffer(name="in", role="input", size_bytes=4 * n), Buffer(name="out", role="output", size_bytes=4 * n)]
    if workspace:
        buffers.append(Buffer(name="workspace0", role="workspace", size_bytes=workspace))
    return LaunchPlan(
        build_key="core-tests", device_profile="h100", axes={}, buffers=tuple(buffers), tensor_maps=maps,
        operations=operations, isolation="full", recorder_revision=1,
    )  # fmt: skip


def data(n: int = N) -> dict[str, Bytes]:
    return {"in": np.arange(n, dtype="<f4").view(np.uint8), "out": np.full(4 * n, 0xFF, np.uint8)}


def executed(result: Execution | Failure) -> Execution:
    assert isinstance(result, Execution), result
    return result


def failed(result: Execution | Failure) -> Failure:
    assert isinstance(result, Failure), result
    return result


SCALE = launch("scale", pointer("in"), pointer("out"), literal("<f", 2.0), literal("<i", N), grid=N // 128, block=128)


def test_a_launch_gives_outputs_and_counts(device: EmulatorDevice, build: Build) -> None:
    given = data()
    run = executed(device.run(build, plan(SCALE), given))
    np.testing.assert_array_equal(run.buffers["out"].view("<f4"), 2 * np.arange(N, dtype="<f4"))
    assert (given["out"] == 0xFF).all(), "the caller's buffers stay as they are"
    multiply = [c for c in run.counts if c.form.startswith("mul") and c.form.endswith("f32")]
    assert [(c.warp, c.thread, c.line) for c in multiply] == [(N // 32, N, 11)]
    assert run.findings == () and run.warp_instructions == sum(c.warp for c in run.counts)


@pytest.mark.parametrize(
    ("registers", "block", "ctas"),
    [
        (136, 160, 2),  # 4,352 a warp: three in each of four partitions, which hold two CTAs of five warps
        (136, 128, 3),
        (136, 192, 2),
        (32, 160, 12),  # 64 warps
        (168, 384, 1),
    ],
)
def test_registers_of_partitions_limit_the_ctas_of_an_sm(build: Build, registers: int, block: int, ctas: int) -> None:
    """As cuda_occupancy.h counts them: whole warps in each partition of 16,384 registers."""
    built = replace(build, kernels=(KernelResources("scale", registers, 0, 0, 0, 0, (), ()),))
    assert resident_ctas_per_sm(built, launch("scale", block=block)) == ctas


@pytest.mark.parametrize("schedule", ["fair", "lazy", "random"])
def test_threads_change_nothing(device: EmulatorDevice, build: Build, schedule: str) -> None:
    one, two = (
        executed(device.run(build, plan(SCALE), data(), RunOptions(schedule=schedule, seed=5, threads=t)))  # type: ignore[arg-type]
        for t in (1, 2)
    )
    assert one.counts == two.counts and one.findings == two.findings
    np.testing.assert_array_equal(one.buffers["out"], two.buffers["out"])


def test_operations_run_in_order(device: EmulatorDevice, build: Build) -> None:
    first = launch(
        "through_workspace", pointer("in"), pointer("workspace0"), literal("<Q", 0), literal("<i", N), grid=8, block=128
    )
    second = launch(
        "through_workspace", pointer("in"), pointer("workspace0"), pointer("out"), literal("<i", N), grid=8, block=128
    )
    run = executed(device.run(build, plan(first, second, workspace=4 * N), data()))
    np.testing.assert_array_equal(run.buffers["out"].view("<f4"), np.arange(N, dtype="<f4")[::-1] + 1)
    assert run.findings == ()
    unwritten = executed(device.run(build, plan(second, workspace=4 * N), data()))
    assert np.isnan(unwritten.buffers["out"].view("<f4")).all(), "workspaces are poisoned"
    assert [f.code for f in unwritten.findings] == ["memory.uninitialised"]
    assert unwritten.findings[0].severity is Severity.WARNING and unwritten.findings[0].line == 17


@pytest.mark.parametrize(("width", "value"), [(1, 7), (2, 0x0102), (4, 0x01020304)])
def test_a_memset_takes_no_memory_of_its_own(width: int, value: int) -> None:
    """A workspace may have 4 GiB; here it has 8 MiB and an element that stays as it was on either side."""
    space = PlacedBuffer("workspace0", 1 << 20, zeros(8 << 20), zeros(8 << 20))
    count = space.data.size // width - 2
    memset = {"kind": "memset", "target": ("workspace0", width), "value": value, "width_bytes": width, "count": count}
    memory = Memory([space], {})
    tracemalloc.start()
    try:
        move(memset, [], memory)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    elements = space.data.view(f"<u{width}")
    assert (elements[0], elements[-1]) == (0, 0) and (elements[1:-1] == value).all()
    assert space.initialised is not None and int(space.initialised.sum()) == count * width


def test_memset_copy_and_upload(device: EmulatorDevice, build: Build) -> None:
    operations = (
        Memset(target=BufferRef(buffer="out"), value=0x01020304, width_bytes=4, count=N),
        Copy(target=BufferRef(buffer="out", offset=16), source=BufferRef(buffer="in", offset=4), size_bytes=8),
        Upload(target=BufferRef(buffer="out", offset=64), data=pointer("in", 12)),
    )
    out = executed(device.run(build, plan(*operations), data())).buffers["out"]
    assert out.view("<u4")[:3].tolist() == [0x01020304] * 3
    assert out.view("<f4")[4:6].tolist() == [1.0, 2.0]
    assert out.view("<u8")[8] == place([("in", 4 * N)])["in"] + 12


def test_module_variables_start_afresh_with_every_run(device: EmulatorDevice, build: Build) -> None:
    for _ in range(2):
        twice = plan(launch("bump", pointer("out")), launch("bump", pointer("out", 16)))
        out = executed(device.run(build, twice, data())).buffers["out"].view("<i4")
        assert out[:3].tolist() == [42, 42, 5] and out[4:6].tolist() == [44, 44]


def test_tensor_maps_are_packed_into_parameters(device: EmulatorDevice, build: Build) -> None:
    model = TensorMap(
        data_type="FLOAT32", global_address=BufferRef(buffer="in", offset=64), global_dim=(64, 8),
        global_strides_bytes=(256,), box_dim=(32, 4), element_strides=(1, 1), swizzle="128B",
    )  # fmt: skip
    blob = Blob(data="00" * 128, refs=(TensorMapRef(at=0, index=0),))
    run = executed(device.run(build, plan(launch("dump", blob, pointer("out"), block=128), maps=(model,)), data()))
    assert run.buffers["out"][:128].tobytes() == tensor_map.pack(model, place([("in", 4 * N)])["in"] + 64)


# ---- failures


def test_a_fault_names_line_buffer_and_thread(device: EmulatorDevice, build: Build) -> None:
    failure = failed(device.run(build, plan(launch("past_the_end", pointer("out"), literal("<i", N))), data()))
    assert (failure.status, failure.code) == (Status.RUNTIME_FAULT, "memory.out_of_bounds")
    assert failure.message.endswith("right behind the end of out (4096 bytes)")
    finding = failure.findings[0]
    assert finding.line == 30 and finding.source_line is not None and "the line of the fault" in finding.source_line
    assert finding.parties[0].who == "lane 0 of warp 0, CTA (0, 0, 0)"


def test_budget_names_number_and_line(device: EmulatorDevice, build: Build) -> None:
    options = RunOptions(warp_instruction_budget=10_000)
    failure = failed(device.run(build, plan(launch("endless", pointer("out"))), data(), options))
    assert (failure.status, failure.code) == (Status.BUDGET, "emulator.instruction_budget")
    assert "10,000" in failure.message and "line 34" in failure.message


def test_budget_spans_the_launches_of_a_plan(device: EmulatorDevice, build: Build) -> None:
    once = executed(device.run(build, plan(SCALE), data())).warp_instructions
    enough, short = RunOptions(warp_instruction_budget=2 * once), RunOptions(warp_instruction_budget=2 * once - 1)
    executed(device.run(build, plan(SCALE, SCALE), data(), enough))
    assert failed(device.run(build, plan(SCALE, SCALE), data(), short)).status is Status.BUDGET


def test_assert_and_printf(device: EmulatorDevice, build: Build) -> None:
    failure = failed(device.run(build, plan(launch("checked", pointer("out"))), data()))
    assert (
        failure.code == "kernel.assert" and "threadIdx.x < 5" in failure.message and "kernels.cu:38" in failure.message
    )
    printed = executed(device.run(build, plan(launch("hello", pointer("out"), block=3)), data())).printed
    assert printed == "".join(f"thread {t} of hello\n" for t in range(3))


def test_what_is_not_emulated_is_named(device: EmulatorDevice, build: Build) -> None:
    executed(device.run(build, plan(SCALE.model_copy(update={"cooperative": True})), data()))
    form = failed(device.run(build, plan(launch("refused", pointer("out"))), data()))
    assert form.status is Status.NOT_EMULATED and "discard.global.L2" in form.message
    for cluster in ((1, 1, 1), (2, 1, 1)):
        executed(device.run(build, plan(SCALE.model_copy(update={"cluster": cluster})), data()))


OPEN = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry copies(.param .u64 out)
{{
.shared .align 1024 .b8 memory[4096]; .reg .b32 place; .reg .b64 source;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [memory], 32;
ld.shared.u32 place, [memory];
mov.u64 source, {descriptor};
tcgen05.cp.cta_group::1.32x128b.warpx4 [place], source;
ret;
}}
"""


@pytest.mark.parametrize(
    ("mode", "status", "code"),
    [(1, Status.NOT_EMULATED, "emulator.swizzle"), (3, Status.RUNTIME_FAULT, "descriptor.swizzle")],
)
def test_what_is_not_emulated_as_it_runs_is_not_the_kernel_s_fault(
    device: EmulatorDevice, build: Build, tmp_path: Path, mode: int, status: Status, code: str
) -> None:
    ptx = tmp_path / "open.ptx"
    ptx.write_text(OPEN.format(descriptor=mode << 61 | 1 << 46 | 0x80), encoding="utf-8")
    opened = dataclasses.replace(build, key=f"open-{mode}", arch="sm_100a", ptx=ptx)
    failure = failed(device.run(opened, plan(launch("copies", pointer("out"))), data()))
    assert (failure.status, failure.code) == (status, code)
    assert ("not emulated" in failure.message) == (mode == 1)
    assert [finding.code for finding in failure.findings] == ([] if mode == 1 else [code])


def test_missing_buffers_are_the_caller_s_mistake(device: EmulatorDevice, build: Build) -> None:
    with pytest.raises(UsageError, match="buffer in is missing"):
        device.run(build, plan(SCALE), {"out": np.zeros(4 * N, np.uint8)})


# ---- processes


def workers_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if b"ptxgym.device.emulator.worker" in command and parent == pid:
            found.append(int(entry.name))
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, of user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_crash_of_the_core_is_contained(build: Build, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    device = EmulatorDevice(cache=cache)
    before = set(workers_of(os.getpid()))
    caught: list[BaseException] = []

    def run() -> None:
        try:
            device.run(build, plan(launch("endless", pointer("out"))), data())
        except WorkerDied as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not (fresh := set(workers_of(os.getpid())) - before):
        time.sleep(0.02)
    worker = fresh.pop()
    while cpu_seconds(worker) < 1.5:  # it has started and is in the kernel
        time.sleep(0.05)
    os.kill(worker, signal.SIGSEGV)
    thread.join()
    assert isinstance(caught[0], InfrastructureError) and "SIGSEGV" in str(caught[0])
    folder = next(path.parent for path in cache.root.glob("crash/*/*/job.json"))
    assert str(folder) in str(caught[0])
    executed(device.run(build, plan(SCALE), data()))
    device.close()


def test_a_reproducer_runs_again(build: Build, tmp_path: Path) -> None:
    from ptxgym.device.emulator.device import _job
    from ptxgym.device.emulator.pool import keep_reproducer

    folder = keep_reproducer(
        Cache(tmp_path / "cache"), _job(build, plan(SCALE), RunOptions()), np.zeros(8 * N, np.uint8)
    )
    command = [
        sys.executable,
        "-m",
        "ptxgym.device.emulator.worker",
        "--replay",
        str(folder),
        str(native.library("emulator")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert '"outcome": "ok"' in done.stderr


def test_a_run_that_takes_too_long_is_the_machine_s_failure(build: Build) -> None:
    device = EmulatorDevice(wall_limit_s=0.5)
    with pytest.raises(InfrastructureError, match=r"within 0\.5 s"):
        device.run(build, plan(launch("endless", pointer("out"))), data())
    device.close()


def test_workers_end_with_their_evaluator(build: Build) -> None:
    script = (
        "import time; from ptxgym.device.emulator.device import EmulatorDevice\n"
        "device = EmulatorDevice()\n"
        "with device._pool.worker(): print('up', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"up\n"
    (worker,) = workers_of(child.pid)
    child.kill()
    child.wait()
    child.stdout.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()


def test_runs_from_many_threads_share_workers(build: Build) -> None:
    device = EmulatorDevice()
    results: list[Execution | Failure] = []
    threads = [
        threading.Thread(target=lambda: results.append(device.run(build, plan(SCALE), data()))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(result, Execution) for result in results) and len(results) == 6
    assert len(device._pool._idle) <= 6
    device.close()


def test_a_worker_inherits_neither_the_secret_nor_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGYM_SECRET", "not for device code")
    monkeypatch.setenv("SOME_API_KEY", "nor this")
    worker = Worker(native.library("emulator"))
    try:
        held = Path(f"/proc/{worker._process.pid}/environ").read_bytes()
        assert b"not for device code" not in held and b"SOME_API_KEY" not in held
        assert b"PYTHONPATH=" in held
    finally:
        worker.close()
