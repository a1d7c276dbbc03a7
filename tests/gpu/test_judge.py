"""The judge on cupy against the same judge on numpy, and at the size that is timed: `pytest -m gpu tests/gpu -s`."""
# ruff: noqa: T201

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ptxgym.device.protocol import Execution
from ptxgym.judge import conditions as conditioning
from ptxgym.judge import correctness, numbers, references, tiles
from ptxgym.judge.conditions import Case, Conditions, conditions
from ptxgym.judge.explain import explain
from ptxgym.judge.judge import Judgement, judge_numbers
from ptxgym.judge.pattern import pattern
from ptxgym.judge.references import Expected
from ptxgym.judge.rehearsal import rehearse
from ptxgym.task import Task, load_task
from ptxgym.verdict import Status
from tests.judge.fakes import SECRET, execute, honest
from tests.judge.test_explain import CASES

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
WORD = {2: "bf16", 4: "fp32"}


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("gemm")


@pytest.fixture(scope="module")
def drawn(task: Task) -> Conditions:
    return conditions(task, "emulation", secret=SECRET)


def test_bf16_is_rounded_alike(cupy: Any) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    values = bits.view(np.float32)
    assert (numbers.bf16_bits(cupy.asarray(values)).get() == numbers.bf16_bits(values)).all()
    words = np.arange(1 << 16, dtype=np.uint16)
    found, wanted = numbers.bf16_values(cupy.asarray(words)).get(), numbers.bf16_values(words)
    assert (found.view(np.uint32) == wanted.view(np.uint32)).all()


@pytest.mark.parametrize("sizes", [(1,), (63,), (1000,), (64, 64), (130, 257), (1, 7), (3, 70, 65), (2, 2, 128, 192)])
@pytest.mark.parametrize("item_bytes", [2, 4])
def test_the_kernel_measures_as_numpy_does(cupy: Any, sizes: tuple[int, ...], item_bytes: int) -> None:
    random = np.random.default_rng(sum(sizes) + item_bytes)
    dtype: Any = WORD[item_bytes]
    word = numbers.POISON[dtype].dtype
    reference = random.integers(-9, 10, sizes) + random.choice([0.0, 2.0**-12, 2.0**-40], sizes)
    near = (reference + random.choice([0.0, 0.01, 0.5], sizes)).astype(np.float32)
    found = numbers.encode(near, dtype).view(word).reshape(sizes).copy()
    for value in (numbers.POISON[dtype], *numbers.encode(np.float32([np.nan, np.inf, -np.inf]), dtype).view(word)):
        found[random.random(sizes) < 0.02] = value
    ideal = numbers.encode(reference.astype(np.float32), dtype).view(word).reshape(sizes)
    for vendor in (ideal, None):
        on_gpu = [None if array is None else cupy.asarray(array) for array in (found, reference, vendor)]
        wanted, got = tiles.measure(found, reference, vendor), tiles.measure(*on_gpu)
        assert got.squares == pytest.approx(wanted.squares, rel=1e-12, abs=0)
        assert (got.not_finite == wanted.not_finite).all()
        assert (got.unwritten, got.inexact, got.far) == (wanted.unwritten, wanted.inexact, wanted.far)
        assert (tiles.measure(*on_gpu).squares == got.squares).all(), "equal outputs get equal numbers"


def test_references_and_budgets_agree(cupy: Any, task: Task, drawn: Conditions) -> None:
    for case in drawn.cases:
        host, device = references.expect(task, case), references.expect(task, case, cupy)
        assert all((host.inputs[name] == device.inputs[name].get()).all() for name in host.inputs)
        one, other = host.outputs["C"], device.outputs["C"]
        assert other.values.get() == pytest.approx(one.values, rel=1e-9, abs=1e-12 * one.scale)
        assert np.mean(one.ideal_data != other.ideal_data.get()) < 1e-3  # sums in another order round differently
        assert other.accumulation.get() == pytest.approx(one.accumulation, rel=1e-4)
        assert other.tile_budgets == pytest.approx(one.tile_budgets, rel=1e-2)
        for name in ("scale", "lost", "relative_budget", "predictor_error"):
            assert getattr(other, name) == pytest.approx(getattr(one, name), rel=1e-3), name
        assert other.predictor == one.predictor
        assert (one.exact is None) == (other.exact is None)
        if one.exact is not None:
            assert (one.exact == other.exact.get()).all()


@pytest.mark.parametrize("name", CASES)
def test_wrong_outputs_are_told_in_the_same_words(cupy: Any, task: Task, drawn: Conditions, name: str) -> None:
    case = drawn.cases[0]
    data = execute(task, case, CASES[name][0]).buffers["C"]
    told = []
    for xp in (np, cupy):
        expected = references.expect(task, case, xp)
        comparison = correctness.compare(expected.outputs["C"], data, case)
        assert not comparison.ok
        told.append((pattern(comparison), explain(comparison, expected, task.reference()), comparison.worst_tile))
    assert told[0] == told[1]


def on_gpu(cupy: Any, execution: Execution) -> Execution:
    return Execution(buffers={name: cupy.asarray(data) for name, data in execution.buffers.items()})


@pytest.mark.parametrize("name", ["right", "input changed", "gain", "all NaN", "unwritten", "bf16 sums", "stale tile"])
def test_judgements_agree(cupy: Any, task: Task, drawn: Conditions, name: str) -> None:
    def nothing(a: Any, b: Any) -> Any:
        return np.full((len(a), len(b)), numbers.POISON["bf16"], np.uint16)

    kernel = {"right": honest, "input changed": honest, "unwritten": nothing}.get(name) or CASES[name][0]
    touch = "B" if name == "input changed" else None
    runs = [execute(task, case, kernel, touch=touch) for case in drawn.cases]
    host = judge_numbers(task, drawn, runs)
    device = judge_numbers(task, drawn, [on_gpu(cupy, one) for one in runs], xp=cupy)
    assert (device.status, device.code, device.score) == (host.status, host.code, host.score)
    assert device.status is {"right": Status.OK, "input changed": Status.INTEGRITY}.get(name, Status.WRONG_OUTPUT)
    for one, other in zip(host.outputs, device.outputs, strict=True):
        assert (one.pattern, one.explanations, one.draw) == (other.pattern, other.explanations, other.draw)
        assert (one.worst_region, one.closeness, one.ptxbench_ok, one.written) == (
            other.worst_region,
            other.closeness,
            other.ptxbench_ok,
            other.written,
        )
        assert other.relative_error == pytest.approx(one.relative_error, rel=1e-6)


def test_outputs_on_the_host_are_judged_on_the_gpu(cupy: Any, task: Task, drawn: Conditions) -> None:
    """As those of profiled runs, which come home through shared memory."""
    runs = [execute(task, case, honest) for case in drawn.cases]
    assert judge_numbers(task, drawn, runs, xp=cupy).status is Status.OK


def timed(cupy: Any, what: str, work: Callable[[], Any]) -> Any:
    cupy.cuda.Device().synchronize()
    started = time.perf_counter()
    result = work()
    cupy.cuda.Device().synchronize()
    print(f"  {what:<40}{(time.perf_counter() - started) * 1e3:>10.2f} ms")
    return result


def damaged(cupy: Any, expected: Expected) -> dict[str, Any]:
    output = expected.outputs["C"]
    stale, nan = output.ideal.astype(np.float32), output.ideal.astype(np.float32)
    stale[128:192, 64:128] = stale[0:64, 64:128]
    nan[7, 9] = np.nan
    transposed = output.ideal.astype(np.float32)
    transposed[:64, 64:128] = transposed[:64, 64:128].T.copy()
    values = expected.values
    kept = slice(0, expected.case.axes["K"] - 16)
    lost = values["A"][:, kept] @ values["B"][:, kept].T
    encoded = {
        "holds the values of C[0:64, 64:128]": stale,
        "1 elements are NaN, first C[7, 9]": nan,
        "64×64 block is transposed": transposed,
        "lacks k ": lost,
        "1.01 × the reference": (1.01 * output.values).astype(np.float32),
    }
    data = {cause: numbers.encode(array, "bf16") for cause, array in encoded.items()}
    data["were never written"] = cupy.asarray(numbers.poisoned(output.tensor, output.axes))
    return data


def test_the_size_that_is_timed(cupy: Any, task: Task) -> None:
    print()
    timed(cupy, "rehearsal", lambda: rehearse(task, cupy))
    case: Case = conditions(task, "hardware", secret=SECRET).cases[0]
    assert case.axes == {"M": 8192, "N": 7168, "K": 5120}
    timed(cupy, "inputs drawn", lambda: conditioning.inputs(task, case))
    expected = timed(cupy, "inputs, reference, budgets", lambda: references.expect(task, case, cupy))
    print(f"  kept {expected.nbytes / 2**20:.0f} MiB of {references.cache_bytes(cupy) / 2**30:.1f} GiB")
    assert expected.nbytes < 1.1e9
    output = expected.outputs["C"]
    rows = slice(64, 128)
    exact = expected.values["A"][rows].astype(np.float64).get() @ expected.values["B"].astype(np.float64).get().T
    assert output.values[rows].get() == pytest.approx(exact, rel=1e-9, abs=1e-9)
    buffers = {**{name: data.copy() for name, data in expected.inputs.items()}, "C": output.ideal_data.copy()}
    for _ in range(2):
        assert timed(cupy, "a right call is passed", lambda: correctness.flaw(expected, buffers)) is None
        assert timed(cupy, "compare", lambda: correctness.compare(output, buffers["C"], case)).ok
    module = task.reference()
    for cause, data in damaged(cupy, expected).items():
        assert not correctness.passes(output, data)

        def told(data: Any = data) -> tuple[str | None, tuple[str, ...]]:
            comparison = correctness.compare(output, data, case)
            return pattern(comparison), explain(comparison, expected, module)

        where, causes = timed(cupy, f"explain: {cause}", told)
        assert any(cause in one for one in causes), (where, causes)
    buffers["A"][123_456] ^= 1
    assert correctness.flaw(expected, buffers) == "A"
    references.release(cupy)


def test_release_gives_memory_back(cupy: Any, task: Task) -> None:
    references.release(cupy)
    before = -1
    while before != (before := cupy.cuda.Device().mem_info[0]):  # processes of other tests may still be ending
        time.sleep(2)
    case = conditions(task, "hardware", secret=SECRET).cases[0]
    kept = references.expect(task, case, cupy).nbytes
    held = before - cupy.cuda.Device().mem_info[0]
    print(f"\n  held {held / 2**20:.0f} MiB for {kept / 2**20:.0f} MiB")
    assert kept <= held < 2.5 * kept
    references.release(cupy)
    assert before - cupy.cuda.Device().mem_info[0] < 0.1 * kept


def test_a_whole_judgement_at_the_size_that_is_timed(cupy: Any, task: Task) -> None:
    drawn = conditions(task, "hardware", secret=SECRET)
    runs = []
    for case in drawn.cases:
        expected = references.expect(task, case, cupy)
        runs.append(Execution(buffers={**expected.inputs, "C": expected.outputs["C"].ideal_data.copy()}))
    print()
    right: Judgement = timed(cupy, "judge four right calls", lambda: judge_numbers(task, drawn, runs, xp=cupy))
    assert right.status is Status.OK and right.outputs[0].ptxbench_ok
    runs[2].buffers["C"][1_000_000:1_100_000] = 0
    wrong: Judgement = timed(cupy, "judge four calls, one wrong", lambda: judge_numbers(task, drawn, runs, xp=cupy))
    assert wrong.status is Status.WRONG_OUTPUT and wrong.outputs[0].draw == drawn.cases[2].name
    references.release(cupy)
