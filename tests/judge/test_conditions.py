from __future__ import annotations

import itertools
import os
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from ptxgym.errors import UnknownNameError
from ptxgym.judge import conditions as conditioning
from ptxgym.judge import numbers
from ptxgym.judge.conditions import Case, Conditions, conditions
from ptxgym.task import Task, load_task
from ptxgym.variants import load_variant


def values(task: Task, case: Case) -> dict[str, numbers.Floats]:
    drawn = conditioning.inputs(task, case)
    return {tensor.name: numbers.decode(drawn[tensor.name], tensor, case.axes) for tensor in task.inputs}


def draw(drawn: Conditions, kind: str) -> Case:
    return next(case for case in drawn.cases if case.draw == kind)


def test_equal_secrets_give_equal_conditions(task: Task, drawn: Conditions, fakes: ModuleType) -> None:
    again = conditions(task, "emulation", secret=fakes.SECRET)
    assert again == drawn
    for case in drawn.cases:
        before, after = conditioning.inputs(task, case), conditioning.inputs(task, case)
        assert all((before[name] == after[name]).all() for name in before)


@pytest.mark.parametrize("change", [{"secret": b"another"}, {"epoch": 1}, {"workload": "hardware"}, {"revision": 2}])
def test_everything_else_changes_the_draws(
    task: Task, drawn: Conditions, fakes: ModuleType, change: dict[str, object]
) -> None:
    other_task = task.model_copy(update={"revision": 2}) if "revision" in change else task
    arguments = {"workload": "emulation", "epoch": 0, "secret": fakes.SECRET, **change}
    arguments.pop("revision", None)
    other = conditions(other_task, **arguments)  # type: ignore[arg-type]
    assert other.hash != drawn.hash
    assert not {case.seed for case in other.cases} & {case.seed for case in drawn.cases}


def test_hidden_shapes_come_from_the_stated_set_and_all_come_up(task: Task) -> None:
    stated = [dict(shape) for shape in task.workload("emulation").hidden]
    seen = []
    for index in range(60):
        hidden = [case for case in conditions(task, secret=str(index).encode()).cases if case.hidden]
        assert len({tuple(case.axes.items()) for case in hidden}) == 1
        assert hidden[0].axes in stated
        seen.append(hidden[0].axes)
    assert all(shape in seen for shape in stated)
    assert task.workload("emulation").axes not in stated


@pytest.mark.parametrize("name", ["gemm", "attn_fwd", "attn_bwd_causal"])
def test_the_secret_says_which_hidden_draw_is_left_to_the_hidden_shape(name: str) -> None:
    """All other kinds are drawn at the public one, where a kernel is timed."""
    task = load_task(name)
    spec = task.workload("hardware")  # all hidden shapes are large
    apart = []
    for index in range(40):
        drawn = conditions(task, "hardware", secret=str(index).encode()).cases
        assert [case.hidden for case in drawn] == [False, False, False, True]
        assert [case.draw for case in drawn[:2]] == ["normal", "shifted"]
        assert {case.draw for case in drawn[2:]} == set(spec.hidden_draws)
        assert all(case.axes == spec.axes for case in drawn[:3]) and drawn[3].axes in spec.hidden
        assert [case.name for case in drawn[2:]] == [f"hardware/{drawn[2].draw}", f"hidden/{drawn[3].draw}"]
        apart.append(drawn[3].draw)
    assert all(10 <= apart.count(draw) <= 30 for draw in spec.hidden_draws)  # 20 ± 3.2 by chance


def test_one_kind_may_be_open_and_hidden(task: Task) -> None:
    update = {"draws": ("normal",), "hidden_draws": ("normal",), "least": {}}
    spec = task.workload("emulation").model_copy(update=update)
    both = task.model_copy(update={"workloads": {**task.workloads, "emulation": spec}})
    first, second = conditions(both, secret=b"both").cases
    assert (first.name, second.name) == ("emulation/normal", "hidden/normal") and first.seed != second.seed


def test_a_hidden_draw_without_another_stays_at_the_hidden_shape(task: Task) -> None:
    spec = task.workload("emulation").model_copy(update={"hidden_draws": ("spiky",), "least": {}})
    alone = task.model_copy(update={"workloads": {**task.workloads, "emulation": spec}})
    for index in range(5):
        drawn = conditions(alone, secret=str(index).encode()).cases
        assert [(case.draw, case.hidden) for case in drawn] == [
            ("normal", False), ("shifted", False), ("spiky", True),
        ]  # fmt: skip


@pytest.mark.parametrize(("name", "moved"), [("gemm", "integers"), ("attn_fwd", "sharp"), ("attn_bwd_causal", "sharp")])
def test_what_shows_nothing_at_a_hidden_shape_of_one_step_is_drawn_at_the_public_one(name: str, moved: str) -> None:
    """At K = 64 nothing is split, at S = 128 nothing is rescaled or summed up; else either hidden draw comes up.

    Where none is left for the hidden shape, the last open one is made there.
    """
    task = load_task(name)
    spec = task.workload("emulation")
    (other,) = {*spec.hidden_draws} - {moved}
    left = other if other not in spec.least else "shifted"
    seen = set()
    for index in range(60):
        drawn = conditions(task, secret=str(index).encode()).cases
        hidden = drawn[-1]
        small = hidden.axes.get("K", 1000) == 64 or hidden.axes.get("S", 1000) == 128
        assert hidden.hidden and hidden.axes in spec.hidden and len(drawn) == 4
        found = {case.draw: (case.name, case.axes, case.hidden) for case in drawn}
        apart = left if small else hidden.draw
        assert set(found) == {"normal", "shifted", other, moved}
        assert found.pop(apart) == (f"hidden/{apart}", hidden.axes, True)
        assert all(place == (f"emulation/{draw}", spec.axes, False) for draw, place in found.items())
        seen.add((small, apart))
    assert seen == {(True, left), (False, other), (False, moved)}


def test_where_all_sizes_are_small_either_hidden_draw_comes_up_at_the_hidden_shape() -> None:
    for name, variant in (("gemm", "k64"), ("attn_fwd", "s128")):
        task = load_variant(name, variant)
        apart = set()
        for index in range(20):
            drawn = conditions(task, secret=str(index).encode()).cases
            assert [case.hidden for case in drawn] == [False, False, False, True]
            apart.add(drawn[-1].draw)
        assert apart == set(task.workload("emulation").hidden_draws)


def test_hash_does_not_hold_the_secret(drawn: Conditions, fakes: ModuleType) -> None:
    assert fakes.SECRET.decode() not in repr(drawn)
    assert fakes.SECRET.hex() not in repr(drawn)
    assert conditioning.secret_hash(fakes.SECRET) != conditioning.secret_hash(b"another")


def test_normal_draw(task: Task, drawn: Conditions) -> None:
    for value in values(task, draw(drawn, "normal")).values():
        assert abs(value.mean()) < 0.02 and abs(value.std() - 1) < 0.02


def test_shifted_draw_is_far_from_zero_mean_and_out_of_fp16s_range(task: Task, drawn: Conditions) -> None:
    drawn_values = values(task, draw(drawn, "shifted"))
    for value in drawn_values.values():
        assert 0.4 < abs(value.mean()) / value.std() < 1.6
    a = drawn_values["A"]
    lost = np.linalg.norm(a.astype(np.float16).astype(np.float32) - a) / np.linalg.norm(a)
    assert lost > 0.02


def test_spiky_draw(task: Task, drawn: Conditions) -> None:
    for value in values(task, draw(drawn, "spiky")).values():
        beyond = float((np.abs(value) > 6).mean())
        assert 0.0002 < beyond < 0.002  # 0.001 × P(|N(0, 101)| > 6) = 0.00055


@pytest.mark.parametrize("variant", ["base", "bshd", "ragged"])
def test_cancelling_draw(variant: str) -> None:
    """Means of V and dO change signs in the middle of a sequence, however it is stored; those of Q and K do not."""
    task = load_variant("attn_bwd", variant)
    signs = set()
    for seed in range(8):
        case = Case("test/cancelling", {"B": 2, "H": 3, "S": 385, "D": 128}, "cancelling", seed, hidden=False)
        given = conditioning.inputs(task, case)
        for tensor in task.inputs:
            if tensor.derived:
                continue
            value = numbers.decode(given[tensor.name], tensor, case.axes)  # [B, H, S, D]
            first, second = value[:, :, :193], value[:, :, 193:]
            spread, mean = {"Q": (0.25, 1), "K": (0.5, 1), "V": (1, 2), "dO": (1, 2)}[tensor.name]
            assert first.std() == pytest.approx(spread, rel=0.02) and second.std() == pytest.approx(spread, rel=0.02)
            assert abs(first.mean()) == pytest.approx(mean, abs=0.02)
            assert second.mean() * (-1 if mean == 2 else 1) == pytest.approx(first.mean(), abs=0.02)
            signs.add((tensor.name, first.mean() > 0))
    assert len(signs) == 8, "either sign of each of four"


def test_cancelling_draw_is_normal_where_the_task_says_nothing(task: Task) -> None:
    case = Case("test/cancelling", {"M": 128, "N": 256, "K": 320}, "cancelling", 3, hidden=False)
    for value in values(task, case).values():
        assert abs(value.mean()) < 0.02 and abs(value.std() - 1) < 0.02


def test_integer_draw(task: Task, drawn: Conditions) -> None:
    for value in values(task, draw(drawn, "integers")).values():
        assert (value == np.rint(value)).all()
        assert set(np.unique(value)) == set(range(-8, 9))


@pytest.mark.parametrize("kind", ["normal", "shifted", "spiky", "integers"])
def test_threads_change_no_byte(task: Task, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("x/x", {"M": 1024, "N": 768, "K": 1088}, kind, 5, hidden=False)  # type: ignore[arg-type]
    assert 4 * conditioning.CHUNK < 1024 * 1088
    many = conditioning.inputs(task, case)
    monkeypatch.setattr(conditioning, "LEAST_CHUNKS_PER_THREAD", 1000)
    one = conditioning.inputs(task, case)
    monkeypatch.setattr(conditioning, "LEAST_CHUNKS_PER_THREAD", 1)
    monkeypatch.setattr(conditioning.os, "sched_getaffinity", lambda _: set(range(7)))
    seven = conditioning.inputs(task, case)
    assert all((one[name] == many[name]).all() and (one[name] == seven[name]).all() for name in one)


@pytest.mark.parametrize("kind", ["normal", "spiky", "integers"])
def test_chunks_are_drawn_apart_and_the_last_is_whole(task: Task, kind: str) -> None:
    case = Case("x/x", {"M": 512, "N": 768, "K": 1088}, kind, 5, hidden=False)  # type: ignore[arg-type]
    for value in values(task, case).values():
        flat = value.reshape(-1)
        chunks = [flat[start : start + conditioning.CHUNK] for start in range(0, flat.size, conditioning.CHUNK)]
        assert len(chunks) > 2 and 0 < len(chunks[-1]) < conditioning.CHUNK
        assert all(chunk.std() > 0.9 for chunk in chunks)
        for one, other in itertools.pairwise(chunks):
            count = len(other)
            assert abs(np.corrcoef(one[:count], other)[0, 1]) < 5 / np.sqrt(count)


def test_chunks_of_a_tensor_share_shift_and_scale(task: Task) -> None:
    case = Case("x/x", {"M": 512, "N": 768, "K": 1088}, "shifted", 5, hidden=False)
    for value in values(task, case).values():
        chunks = np.array_split(value.reshape(-1), 4)
        assert np.ptp([chunk.mean() for chunk in chunks]) < 0.01 * value.std()
        assert np.ptp([chunk.std() for chunk in chunks]) < 0.01 * value.std()


def test_outputs_are_poisoned(task: Task, drawn: Conditions) -> None:
    case = drawn.cases[0]
    buffers = conditioning.buffers(task, case)
    assert {name: len(data) for name, data in buffers.items()} == task.sizes_bytes(case.axes)
    assert numbers.unwritten(buffers["C"], task.outputs[0], case.axes).all()


def test_unknown_workload_suggests(task: Task) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'emulation'"):
        conditions(task, "emulate", secret=b"x")


def test_drawn_secret_is_shared_with_child_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(conditioning.SECRET_VARIABLE, raising=False)
    secret = conditioning.run_secret()
    assert len(secret) == 64 and secret == conditioning.run_secret()
    code = "from ptxgym.judge.conditions import run_secret; print(run_secret().decode())"
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=True
    )
    assert child.stdout.strip().encode() == secret
