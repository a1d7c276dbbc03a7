"""The references of the attention tasks against sums written out by hand and against derivatives by differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgym.judge.conditions import conditions
from ptxgym.judge.conditions import inputs as inputs_of
from ptxgym.judge.numbers import decode, round_bf16
from ptxgym.task import load_task

FORWARD = ("attn_fwd", "attn_fwd_causal")
BACKWARD = ("attn_bwd", "attn_bwd_causal")
AXES = {"B": 2, "H": 2, "S": 5, "D": 8}
SIZES = tuple(AXES.values())

Arrays = dict[str, NDArray[Any]]


def drawn(names: str = "QKV") -> Arrays:
    random = np.random.default_rng(3)
    return {name: round_bf16(random.standard_normal(SIZES, dtype=np.float32)) for name in names}


def by_hand(inputs: Arrays, causal: bool, head: tuple[int, int], row: int) -> tuple[list[float], float]:
    """One row of O and its LSE, by the definition and sums that lose nothing."""
    query, key, value = (inputs[name][head].tolist() for name in "QKV")
    keys = range(row + 1 if causal else SIZES[2])
    scores = [math.fsum(a * b for a, b in zip(query[row], key[j], strict=True)) / math.sqrt(8) for j in keys]
    total = math.fsum(math.exp(score) for score in scores)
    weights = [math.exp(score) / total for score in scores]
    return [math.fsum(w * value[j][d] for w, j in zip(weights, keys, strict=True)) for d in range(8)], math.log(total)


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("most_scores", [1 << 24, 15, 1])
def test_forward_is_softmax_by_its_definition(name: str, most_scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of all queries of a head, of three, and of one."""
    module, inputs = load_task(name).reference(), drawn()
    monkeypatch.setitem(module.reference.__func__.__globals__["blocks"].__globals__, "MOST_SCORES", most_scores)
    found = module.reference(np, inputs, AXES)
    ideal = module.ideal(np, inputs, AXES, round_bf16)
    assert found["O"].dtype == found["LSE"].dtype == np.float64
    for index in np.ndindex(SIZES[:3]):
        output, lse = by_hand(inputs, name.endswith("causal"), index[:2], index[2])
        assert found["O"][index] == pytest.approx(output, rel=1e-12)
        assert found["LSE"][index] == pytest.approx(lse, rel=1e-12)
        assert ideal["LSE"][index] == pytest.approx(lse, rel=1e-6)
        assert ideal["O"][index] == pytest.approx(output, rel=2**-7, abs=2**-8)
    assert (round_bf16(ideal["O"]) == ideal["O"]).all()


def test_forward_contract_and_counts() -> None:
    axes = {"B": 4, "H": 48, "S": 4096, "D": 128}
    full, causal = load_task("attn_fwd"), load_task("attn_fwd_causal")
    pairs = 4 * 48 * 4096 * 4097 // 2  # of a query and a key that it sees
    assert full.flops(axes) == 2 * full.required_multiply_adds(axes) == 4 * 4 * 48 * 4096**2 * 128
    assert causal.flops(axes) == 2 * causal.required_multiply_adds(axes) == 4 * pairs * 128
    for task in (full, causal):
        assert task.signature.declaration() == (
            'extern "C" void run(const __nv_bfloat16* Q, const __nv_bfloat16* K, const __nv_bfloat16* V, '
            "__nv_bfloat16* O, float* LSE, int B, int H, int S, int D, cudaStream_t stream)"
        )
        assert task.workload("hardware").axes == axes
        assert task.moved_bytes(axes) == sum(task.sizes_bytes(axes).values())
        assert task.shape_problem({**axes, "D": 64}) == "D=64 lies outside 128 … 128"
        assert task.shape_problem({**axes, "S": 4032}) == "S=4032 is not a multiple of 128"


@pytest.mark.parametrize("name", FORWARD)
def test_small_workloads_have_several_tiles_and_heads(name: str) -> None:
    shapes = [load_task(name).workload("emulation").axes, *load_task(name).workload("emulation").hidden]
    assert max(shape["B"] for shape in shapes) > 1 and max(shape["H"] for shape in shapes) > 1
    assert {shape["S"] // 128 for shape in shapes} == {1, 2, 3, 4, 5}
    for shape in shapes:
        assert 24e6 < 2 * shape["B"] * shape["H"] * shape["S"] ** 2 * 128 < 110e6


@pytest.mark.parametrize("name", FORWARD)
def test_terms_of_the_output_are_what_leaving_out_keys_takes_away(name: str) -> None:
    module, axes = load_task(name).reference(), {"B": 1, "H": 2, "S": 256, "D": 8}
    random = np.random.default_rng(5)
    inputs = {n: round_bf16(random.standard_normal((1, 2, 256, 8), dtype=np.float32)) for n in "QKV"}
    region = (slice(0, 1), slice(1, 2), slice(128, 192), slice(0, 8))
    labels, parts = module.terms(np, inputs, axes, "O", region)
    stop = 192 if name.endswith("causal") else 256
    assert labels == [f"keys {start}:{start + 64}" for start in range(0, stop, 64)]
    kept = [j for j in range(stop) if not 64 <= j < 128]
    q, k, v = (inputs[n][0, 1].astype(np.float64) for n in "QKV")
    weights = np.exp(q[128:192] @ k[kept].T / math.sqrt(8))
    if name.endswith("causal"):
        weights[np.array(kept)[None, :] > np.arange(128, 192)[:, None]] = 0
    without = weights @ v[kept] / weights.sum(axis=1, keepdims=True)
    assert module.reference(np, inputs, axes)["O"][region][0, 0] - parts[1] == pytest.approx(without, abs=1e-5)
    assert module.terms(np, inputs, axes, "LSE", region[:3]) is None


def test_shared_code_is_no_task_and_the_family_uses_it() -> None:
    from ptxgym import content

    assert "attention" not in content.find("tasks")
    one, other = (load_task(name).reference() for name in FORWARD)
    assert one.reference.__func__ is other.reference.__func__
    assert one.reference.__self__ is not other.reference.__self__


def prepared(module: Any, axes: dict[str, int]) -> Arrays:
    """Inputs of backward in float64, O and LSE not rounded."""
    random = np.random.default_rng(8)
    given = {name: random.standard_normal(tuple(axes.values())) for name in ("Q", "K", "V", "dO")}
    return {**given, **module.derived(np, given, axes)}


@pytest.mark.parametrize("name", BACKWARD)
@pytest.mark.parametrize("most_scores", [1 << 24, 15])
def test_backward_is_the_derivative_of_forward(name: str, most_scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_task(name).reference()
    forward = load_task(name.replace("bwd", "fwd")).reference()
    monkeypatch.setitem(module.reference.__func__.__globals__["blocks"].__globals__, "MOST_SCORES", most_scores)
    inputs = prepared(module, AXES)
    found = module.reference(np, inputs, AXES)
    random = np.random.default_rng(1)
    for output, varied in (("dQ", "Q"), ("dK", "K"), ("dV", "V")):
        assert found[output].dtype == np.float64
        for _ in range(3):
            way = random.standard_normal(SIZES)
            losses = [
                (forward.reference(np, {**inputs, varied: inputs[varied] + step * way}, AXES)["O"] * inputs["dO"]).sum()
                for step in (1e-5, -1e-5)
            ]
            assert (found[output] * way).sum() == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("name", BACKWARD)
def test_backward_takes_the_given_output_and_lse(name: str) -> None:
    """Their roundings belong to the problem: another O moves delta, another LSE scales P."""
    module = load_task(name).reference()
    inputs = prepared(module, AXES)
    found = module.reference(np, inputs, AXES)
    louder = module.reference(np, {**inputs, "LSE": inputs["LSE"] - math.log(2)}, AXES)
    assert all(louder[output] == pytest.approx(2 * found[output]) for output in found)
    shifted = module.reference(np, {**inputs, "O": inputs["O"] + 0.25 * inputs["dO"]}, AXES)
    assert shifted["dV"] == pytest.approx(found["dV"])
    assert np.abs(shifted["dQ"] - found["dQ"]).max() > 0.1


@pytest.mark.parametrize("name", BACKWARD)
def test_terms_of_gradients_add_up(name: str) -> None:
    module, axes = load_task(name).reference(), {"B": 1, "H": 2, "S": 256, "D": 8}
    inputs = {n: array.astype(np.float32) for n, array in prepared(module, axes).items()}
    region = (slice(0, 1), slice(1, 2), slice(128, 192), slice(0, 8))
    whole = module.reference(np, inputs, axes)
    causal = name.endswith("causal")
    for output, starts in (("dQ", [0, 64, 128]), ("dK", [128, 192]), ("dV", [128, 192])):
        labels, parts = module.terms(np, inputs, axes, output, region)
        what = "keys" if output == "dQ" else "queries"
        starts = starts if causal else [0, 64, 128, 192]
        assert labels == [f"{what} {start}:{start + 64}" for start in starts]
        assert parts.sum(axis=0) == pytest.approx(whole[output][region][0, 0], abs=1e-5)


@pytest.mark.parametrize("name", BACKWARD)
def test_derived_inputs_are_those_of_the_drawn_ones(name: str) -> None:
    task, forward = load_task(name), load_task(name.replace("bwd", "fwd"))
    case = conditions(task, "emulation", secret=b"derived").cases[0]
    data = inputs_of(task, case)
    assert list(data) == ["Q", "K", "V", "O", "dO", "LSE"]
    values = {t.name: decode(data[t.name], t, case.axes) for t in task.inputs}
    wanted = forward.reference().reference(np, values, case.axes)
    assert (values["O"] == round_bf16(wanted["O"].astype(np.float32))).all()
    assert (values["LSE"] == wanted["LSE"].astype(np.float32)).all()
    again = inputs_of(task, case)
    assert all((again[n] == data[n]).all() for n in data)


def test_backward_contract_and_counts() -> None:
    axes = {"B": 4, "H": 48, "S": 4096, "D": 128}
    full, causal = (load_task(name) for name in BACKWARD)
    assert full.required_multiply_adds(axes) == 5 * 4 * 48 * 4096**2 * 128
    assert causal.required_multiply_adds(axes) == 5 * 4 * 48 * (4096 * 4097 // 2) * 128
    for task in (full, causal):
        assert task.flops(axes) == 2 * task.required_multiply_adds(axes)
        assert task.moved_bytes(axes) == sum(task.sizes_bytes(axes).values())
        assert task.signature.declaration() == (
            'extern "C" void run(const __nv_bfloat16* Q, const __nv_bfloat16* K, const __nv_bfloat16* V, '
            "const __nv_bfloat16* O, const __nv_bfloat16* dO, const float* LSE, __nv_bfloat16* dQ, __nv_bfloat16* dK, "
            "__nv_bfloat16* dV, int B, int H, int S, int D, cudaStream_t stream)"
        )
