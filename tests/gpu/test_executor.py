"""The executor on a Hopper GPU: `pytest -m gpu tests/gpu/test_executor.py -s`."""
# ruff: noqa: T201

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgym.build import Build, build
from ptxgym.device.cuda.executor import Call, Executor
from ptxgym.device.cuda.gpu import Gpu, profile_of
from ptxgym.errors import UsageError
from ptxgym.judge.numbers import bf16_bits, bf16_values
from ptxgym.plan import Argument, LaunchPlan, record
from ptxgym.task import load_task
from ptxgym.verdict import Failure, Status

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

N = 1000
DECLARATION = 'extern "C" void run(const int* A, int* C, int which, int n, cudaStream_t stream)'
GEMM = 'extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int M, int N, int K, cudaStream_t stream)'  # noqa: E501
A = np.arange(1, N + 1, dtype=np.int32)
POISON = np.uint32(0x7FDBABED)
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def built() -> Build:
    return compiled(Path(__file__).with_name("executor.cu").read_text(), DECLARATION)


@pytest.fixture
def run(gpu: Gpu, built: Build) -> Iterator[Run]:
    """Calls a case in an executor of the test's own; keyword arguments as for `Executor.call`."""
    executors: dict[int, Executor] = {}

    def once(which: int, **options: Any) -> tuple[Any, np.ndarray]:
        if which not in executors:
            executors[which] = Executor.start(gpu)
            assert executors[which].load(built, [planned(gpu, built, which)]) is None
            assert not executors[which].reloads
        out = np.zeros(N, np.int32)
        called = executors[which].call(0, {"A": A}, {"C": out}, timeout_s=20, poison={"C": POISON}, **options)
        return called, out

    yield once
    for executor in executors.values():
        executor.close()


def compiled(text: str, declaration: str) -> Build:
    made = build(text, declaration=declaration, arch="sm_90a")
    assert isinstance(made, Build), made
    return made


def planned(gpu: Gpu, built: Build, which: int) -> LaunchPlan:
    arguments = [Argument("A", "input", 4 * N), Argument("C", "output", 4 * N)]
    plan = record(built, arguments, {"which": which, "n": N}, profile_of(gpu), confined=False)
    assert isinstance(plan, LaunchPlan), plan
    return plan


def alone(gpu: Gpu, built: Build, plan: LaunchPlan, timeout_s: float = 20) -> Failure:
    with Executor.start(gpu) as executor:
        assert executor.load(built, [plan]) is None
        failed = executor.call(0, {"A": A}, {}, timeout_s=timeout_s)
        print(f"\n{failed}")
        assert isinstance(failed, Failure)
        return failed


def ok(outcome: tuple[Any, np.ndarray]) -> np.ndarray:
    called, out = outcome
    assert isinstance(called, Call), called
    return out


def test_fills_copies_constants_and_streams(run: Run) -> None:
    out = ok(run(0))
    assert out[:4].tolist() == [0x11111111] * 4
    assert out[4:8].tolist() == [1, 2, 3, 4]
    assert out[8:12].tolist() == [10, 20, 30, 40]
    assert out[12:16].tolist() == [3, 6, 9, 12]
    assert out[16:20].tolist() == [6, 12, 18, 24]
    assert set(out[20:].tolist()) == {int(POISON)}


@pytest.mark.parametrize(("which", "size"), [(1, 4), (2, 16)])
def test_clusters_by_attribute(run: Run, which: int, size: int) -> None:
    assert ok(run(which))[:32].tolist() == [100 * size + block % size for block in range(32)]


def test_side_streams_run_beside_each_other(run: Run, gpu: Gpu, built: Build) -> None:
    def time_us(which: int) -> float:
        times = []
        for _ in range(9):
            called, out = run(which)
            assert out[:4].tolist() == [1] * 4
            times.append(called.time_us)
        return statistics.median(times)

    alone_us, two_us = time_us(16), time_us(21)
    print(f"\none spin {alone_us:.1f} µs, two on two streams {two_us:.1f} µs")
    assert two_us < 1.5 * alone_us
    with Executor.start(gpu, side_streams=False) as executor, pytest.raises(UsageError, match="side_streams"):
        executor.load(built, [planned(gpu, built, 21)])


def test_a_process_takes_submissions_one_after_another(gpu: Gpu, built: Build) -> None:
    def free_bytes() -> int:
        return int(cupy.cuda.Device(0).mem_info[0])

    cupy = pytest.importorskip("cupy")
    plan, times, left = planned(gpu, built, 6), [], []
    executor = Executor.start(gpu, side_streams=False)
    executor.ready()
    for _ in range(8):
        assert executor.load(built, [plan]) is None
        out = np.zeros(N, np.int32)
        assert isinstance(executor.call(0, {"A": A}, {"C": out}, timeout_s=20, poison={"C": POISON}), Call)
        assert out[:6].tolist() == [0, 40, 2, 0, 77, 6]  # no variable is as another context left it
        started = time.perf_counter()
        executor = executor.renewed()
        times.append(time.perf_counter() - started)
        left.append(free_bytes())
    executor.close()
    print(f"\nrenewed in {min(times):.3f} to {max(times):.3f} s; bytes free {min(left[1:])} to {max(left[1:])}")
    assert max(left[1:]) - min(left[1:]) < 8 << 20


def test_clusters_that_are_compiled_in(run: Run) -> None:
    assert ok(run(3))[:32].tolist() == [2] * 32


def test_cooperative_launches(run: Run) -> None:
    assert ok(run(4))[:64].tolist() == [sum(range(1, 65))] * 64


def test_programmatic_launches(run: Run) -> None:
    assert ok(run(5))[:64].tolist() == list(range(7, 71))


def test_variables_are_restored(run: Run) -> None:
    for _ in range(3):
        assert ok(run(6))[:6].tolist() == [0, 40, 2, 0, 77, 6]


def test_nothing_is_left_in_shared_and_local_memory(run: Run) -> None:
    assert ok(run(18))[0] > 1_000_000  # the control: from launch to launch of one call it stays
    assert ok(run(20))[0] > 1_000_000
    for _ in range(3):
        assert ok(run(17))[0] == 0
        assert ok(run(19))[0] == 0


def test_bytes_beside_a_buffer(run: Run) -> None:
    after, _ = run(9)
    before, _ = run(10)
    assert (after.status, after.code) == (Status.RUNTIME_FAULT, "cuda.out_of_bounds")
    assert "past the end of C" in after.message
    assert "9 bytes before the start of C" in before.message


def test_printing(run: Run) -> None:
    called, _ = run(14)
    assert called.printed == f"thread 0 of {N}\nthread 1 of {N}\n"


def test_events_fit_into_the_host_s_clock(run: Run) -> None:
    for flush in (False, True):
        times = []
        for _ in range(20):
            called, out = run(16, flush=flush)
            assert out[:4].tolist() == [1] * 4
            assert called.time_us < called.device_wall_us < called.wall_us
            times.append(called)
        print(
            f"\nspin of 400,000 cycles, flush {flush}: {statistics.median(c.time_us for c in times):.1f} µs by events, "
            f"{statistics.median(c.device_wall_us for c in times):.0f} by the executor, "
            f"{statistics.median(c.wall_us for c in times):.0f} for the whole call"
        )
        assert 200 < statistics.median(c.time_us for c in times) < 400  # 1.98 GHz


@pytest.mark.parametrize(
    ("which", "code"),
    [(7, "illegal_address"), (8, "illegal_address"), (11, "misaligned_address"), (13, "assert"), (15, "launch_failed")],
)
def test_faults(gpu: Gpu, built: Build, which: int, code: str) -> None:
    failed = alone(gpu, built, planned(gpu, built, which))
    assert (failed.status, failed.code) == (Status.RUNTIME_FAULT, f"cuda.{code}")
    if code == "assert":
        assert "asserted on purpose" in failed.message


def test_hangs_are_killed(gpu: Gpu, built: Build, run: Run) -> None:
    ok(run(3))
    started = time.monotonic()
    failed = alone(gpu, built, planned(gpu, built, 12), timeout_s=1)
    print(f"killed after {time.monotonic() - started:.1f} s")
    assert failed.status is Status.HANG
    assert ok(run(3))[:32].tolist() == [2] * 32  # others live on


def test_launches_that_are_refused(gpu: Gpu, built: Build) -> None:
    large = planned(gpu, built, 4)
    launch = large.launches[0].model_copy(update={"grid": (100_000, 1, 1)})
    failed = alone(gpu, built, large.model_copy(update={"operations": (launch,)}))
    assert (failed.status, failed.code) == (Status.LAUNCH_ERROR, "cuda.cooperative_launch_too_large")
    failed = alone(gpu, built, planned(gpu, built, 2).model_copy(update={"functions": ()}))
    assert (failed.status, failed.code) == (Status.LAUNCH_ERROR, "cuda.invalid_cluster_size")
    vast = tuple(b.model_copy(update={"size_bytes": 300 << 30}) if b.role == "workspace" else b for b in large.buffers)
    failed = alone(gpu, built, large.model_copy(update={"buffers": vast}))
    assert (failed.status, failed.code) == (Status.LAUNCH_ERROR, "cuda.out_of_memory")


def gemm_plan(gpu: Gpu, built: Build, m: int, n: int, k: int) -> LaunchPlan:
    arguments = [
        Argument("A", "input", 2 * m * k),
        Argument("B", "input", 2 * n * k),
        Argument("C", "output", 2 * m * n),
    ]
    plan = record(built, arguments, {"M": m, "N": n, "K": k}, profile_of(gpu), confined=False)
    assert isinstance(plan, LaunchPlan), plan
    return plan


@pytest.mark.parametrize("name", ["naive", "oracle"])
def test_solutions_of_gemm(gpu: Gpu, name: str) -> None:
    task = load_task("gemm")
    (solution,) = (s for s in task.solutions["h100"] if Path(s.file).stem == name)
    built = compiled(task.source(solution), GEMM)
    m, n, k = 256, 512, 576
    rng = np.random.default_rng(3)
    a, b = (bf16_bits(rng.standard_normal((rows, k), np.float32)) for rows in (m, n))
    c = np.zeros((m, n), np.uint16)
    with Executor.start(gpu) as executor:
        assert executor.load(built, [gemm_plan(gpu, built, m, n, k)]) is None
        for _ in range(2):
            assert isinstance(executor.call(0, {"A": a, "B": b}, {"C": c}, timeout_s=20), Call)
            exact = bf16_values(a).astype(np.float64) @ bf16_values(b).astype(np.float64).T
            assert np.linalg.norm(bf16_values(c) - exact) < 3e-3 * np.linalg.norm(exact)


def test_regions_at_the_size_that_is_timed(gpu: Gpu) -> None:
    cupy = pytest.importorskip("cupy")
    from ptxgym.device.cuda.regions import RegionPool

    task = load_task("gemm")
    (oracle,) = (s for s in task.solutions["h100"] if Path(s.file).stem == "oracle")
    built = compiled(task.source(oracle), GEMM)
    m, n, k = 8192, 7168, 5120
    plan = gemm_plan(gpu, built, m, n, k)
    clock = time.perf_counter
    start = clock()
    executor = Executor.start(gpu)
    greeting = executor.ready()
    ready_s = clock() - start
    start = clock()
    assert executor.load(built, [plan]) is None
    load_s = clock() - start
    pool = RegionPool(8 << 30)
    a, b = pool.take(2 * m * k), pool.take(2 * n * k)
    slots = [pool.take(2 * m * n) for _ in range(3)]
    random = cupy.random.default_rng(1)
    for region in (a, b):
        values = random.standard_normal(region.size_bytes // 2, cupy.float32)
        region.array.view(cupy.uint16)[...] = (values.view(cupy.uint32) >> 16).astype(cupy.uint16)

    def floats(region: Any, rows: int) -> Any:
        return (region.array.view(cupy.uint16).astype(cupy.uint32) << 16).view(cupy.float32).reshape(rows, -1)

    expected = floats(a, m)[:256] @ floats(b, n).T
    calls = []
    for index in range(30):
        slot = slots[index % 3]
        slot.array[...] = 0
        cupy.cuda.Device().synchronize()
        called = executor.call(0, {"A": a, "B": b}, {"C": slot}, timeout_s=20, flush=True)
        assert isinstance(called, Call), called
        calls.append(called)
        assert float(cupy.linalg.norm(floats(slot, m)[:256] - expected) / cupy.linalg.norm(expected)) < 3e-3
    times = sorted(call.time_us for call in calls[5:])
    print(
        f"\n{greeting}\nready {ready_s:.2f} s, load {load_s * 1e3:.0f} ms, first call {calls[0].wall_us / 1e3:.1f} ms, "
        f"later ones {statistics.median(c.wall_us for c in calls[5:]) / 1e3:.1f} ms, of which flush and kernel "
        f"{statistics.median(c.device_wall_us for c in calls[5:]) / 1e3:.2f} ms and kernel "
        f"{times[0]:.1f} to {times[-1]:.1f} µs, median {statistics.median(times):.1f}"
    )
    start = clock()
    executor.close()
    print(f"end {clock() - start:.2f} s")
    for region in (a, b, *slots):
        pool.give_back(region)
    assert pool.take(2 * m * k) in (a, b)
    pool.close()
