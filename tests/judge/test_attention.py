"""The budgets of attention: honest kernels pass with room, and no fault of the list passes every draw.

`python -m tests.judge.test_attention` prints the tables of `docs/attention.md`.
"""

from __future__ import annotations

import functools
import sys
from collections import defaultdict

import numpy as np
import pytest

from ptxgym.device.protocol import Execution
from ptxgym.judge import references
from ptxgym.judge.conditions import Case, Conditions, conditions
from ptxgym.judge.correctness import Comparison, compare
from ptxgym.judge.explain import explain
from ptxgym.judge.judge import judge_numbers
from ptxgym.judge.references import expect
from ptxgym.reward import RAN_SCORE
from ptxgym.task import load_task
from ptxgym.variants import load_variant
from tests.judge import attention
from tests.judge.attention import Arrays, Fault, Style

TASKS = ("attn_fwd", "attn_fwd_causal", "attn_bwd", "attn_bwd_causal")
SECRET = b"a secret of the attention tests"
ROOM = 0.75
"""Honest kernels stay below this share of every budget …"""
MARGIN = 1.2
"""… and faults are over one by at least this factor."""


@functools.cache
def drawn(name: str, secret: bytes = SECRET) -> Conditions:
    return conditions(load_task(name), "emulation", secret=secret)


def compared(name: str, case: Case, outputs: Arrays) -> dict[str, Comparison]:
    task = load_task(name)
    return {
        tensor.name: compare(
            expect(task, case).outputs[tensor.name], attention.stored(outputs[tensor.name], tensor.dtype), case
        )
        for tensor in task.outputs
    }


def excess(name: str, case: Case, **how: Style | Fault) -> float:
    """Return how far over budget the worst output of a kernel is on one case."""
    found = attention.kernel(name)(expect(load_task(name), case).values, **how)
    return max(comparison.excess for comparison in compared(name, case, found).values())


@pytest.mark.parametrize("name", TASKS)
def test_the_lists_are_long_enough(name: str) -> None:
    assert len(attention.honest(name)) >= 8 and len(attention.faults(name)) >= 30


@pytest.mark.parametrize(("name", "label"), [(name, label) for name in TASKS for label in attention.honest(name)])
def test_honest_kernels_pass_with_room(name: str, label: str) -> None:
    for case in drawn(name).cases:
        assert excess(name, case, style=attention.honest(name)[label]) < ROOM, case.name


@pytest.mark.parametrize(("name", "label"), [(name, label) for name in TASKS for label in attention.faults(name)])
def test_faulty_kernels_fail(name: str, label: str) -> None:
    """On some draw; which ones, the tables say."""
    fault = attention.faults(name)[label]
    assert any(excess(name, case, fault=fault) > MARGIN for case in drawn(name).cases)


def test_each_draw_catches_what_the_others_miss() -> None:
    """Of the maximum, of BF16's range, and of sums in FP32 between blocks, each is asked for by one draw alone."""
    by_draw = {case.draw: case for case in drawn("attn_fwd").cases}
    for label, only in (
        ("maximum not subtracted", "sharp"),
        ("V in FP16", "shifted"),
        ("sums rounded to BF16 each 128 terms", "cancelling"),
    ):
        fault = attention.faults("attn_fwd")[label]
        caught = [draw for draw, case in by_draw.items() if excess("attn_fwd", case, fault=fault) > 1]
        assert caught == [only]


def test_a_maximum_left_out_at_the_public_shape_is_found_where_sharp_scores_are_drawn_there() -> None:
    public = load_task("attn_fwd").workload("emulation").axes
    fault, found = attention.faults("attn_fwd")["maximum not subtracted"], []
    for secret in (str(index).encode() for index in range(20)):
        cases = drawn("attn_fwd", secret).cases
        assert sum(case.axes == public for case in cases) == 3
        if any(case.axes == public and case.draw == "sharp" for case in cases):  # else that is at the hidden one
            at_public = [case for case in cases if case.axes == public]
            found.append(max(excess("attn_fwd", case, fault=fault) for case in at_public) > MARGIN)
    assert all(found) and 8 <= len(found) <= 18  # 0.6 of 20: one of two, and all at a hidden S = 128


@pytest.mark.parametrize("name", ["attn_fwd", "attn_fwd_causal"])
def test_no_ragged_size_leaves_a_tile_of_few_rows(name: str) -> None:
    """Of a single row one rounding of P to BF16, 2⁻⁹, may be all of LSE's error: 1.1 of its tile's budget at S = 449.

    It is where a kernel rescales O lazily and sums P as rounded: honest, each of them and both.
    """
    task = load_variant(name, "ragged")
    for spec in (task.workload("emulation"), task.workload("hardware")):
        assert all(axes["S"] % 64 == 0 or axes["S"] % 64 > 4 for axes in (spec.axes, *spec.hidden))
    both = Style(slack=8.0, block=128, sum_rounded=True)
    for seed in range(100, 110):
        case = Case("test/sharp", {"B": 1, "H": 1, "S": 457, "D": 128}, "sharp", seed, hidden=False)
        assert excess(name, case, style=both) < 0.7


@pytest.mark.parametrize("name", ["attn_fwd", "attn_fwd_causal"])
def test_a_lazy_rescaling_that_is_forgotten_fails_whatever_the_hidden_shape(name: str) -> None:
    """It comes where the maximum grows by 2⁸ between blocks of 128 keys: on the sharp draw, with two blocks."""
    lazy = Style(slack=8.0, block=128)
    sizes = set()
    for secret in (str(index).encode() for index in range(40)):
        cases = drawn(name, secret).cases
        size = tuple(cases[-1].axes.values())
        if size in sizes:
            continue
        sizes.add(size)
        assert max(excess(name, case, style=lazy, fault=Fault(rescale=False, block=128)) for case in cases) > MARGIN, (
            size
        )
        assert max(excess(name, case, style=lazy) for case in cases) < ROOM
    assert len(sizes) == len(load_task(name).workload("emulation").hidden)


def at_every_size(name: str, seeds: int, least: int) -> list[Case]:
    """Return cancelling cases of several seeds at all sizes of the emulation workload with `least` keys or more."""
    spec = load_task(name).workload("emulation")
    sizes = {tuple(axes.items()): axes for axes in (spec.axes, *spec.hidden) if axes["S"] >= least}
    return [
        Case("test/cancelling", axes, "cancelling", seed, hidden=False)
        for axes in sizes.values()
        for seed in range(seeds)
    ]


def each_excess(name: str, case: Case, **how: Style | Fault) -> dict[str, float]:
    found = attention.kernel(name)(expect(load_task(name), case).values, **how)
    return {output: comparison.excess for output, comparison in compared(name, case, found).items() if output != "LSE"}


@pytest.mark.parametrize("name", ["attn_fwd", "attn_bwd"])
def test_sums_kept_in_bf16_between_blocks_fail_at_every_size(name: str) -> None:
    """Each output by itself, by far; honest kernels are as far from their budgets as elsewhere."""
    for case in at_every_size(name, 1, 129):
        for block in (64, 128):
            assert min(each_excess(name, case, fault=Fault(round_sums=True, block=block)).values()) > 2.5, case
        for label, style in attention.honest(name).items():
            assert max(each_excess(name, case, style=style).values()) < 0.7, (label, case)


@pytest.mark.parametrize("name", TASKS)
def test_trivial_predictors_earn_no_more_than_zeros(name: str) -> None:
    task, cases = load_task(name), drawn(name).cases
    expected = [expect(task, case) for case in cases]
    guesses = [
        task.reference().predictors(np, one.values, one.case.axes, {n: o.values for n, o in one.outputs.items()})
        for one in expected
    ]
    for label in guesses[0]:
        runs = [
            Execution(
                buffers={
                    **one.inputs,
                    **{t.name: attention.stored(guess[label][t.name], t.dtype) for t in task.outputs},
                }
            )
            for one, guess in zip(expected, guesses, strict=True)
        ]
        judgement = judge_numbers(task, drawn(name), runs)
        assert judgement.score == RAN_SCORE and not any(output.ok for output in judgement.outputs), label


@pytest.mark.parametrize(
    ("name", "label", "output", "words"),
    [
        ("attn_fwd", "LSE in base 2", "LSE", "the output is 1.443 × the reference"),
        ("attn_fwd", "LSE off by 0.002", "LSE", "the output is the reference + 0.002"),
        ("attn_fwd", "a tile of keys dropped", "O", "the sum lacks keys 64:128"),
        ("attn_fwd_causal", "a stale tile of O", "O", "64:128] holds the values of O[0, 0, 0:64, "),
        ("attn_bwd", "dQ without scale", "dQ", "the output is 11.31 × the reference"),
        ("attn_bwd", "dQ lacks a tile of keys", "dQ", "the sum lacks keys 64:128"),
        ("attn_bwd_causal", "dK lacks a tile of queries", "dK", "the sum lacks queries 64:128"),
        ("attn_bwd", "a transposed tile of dV", "dV", "every 64×64 block is transposed"),
    ],
)
def test_causes_are_named(name: str, label: str, output: str, words: str) -> None:
    task, case = load_task(name), drawn(name).cases[0]
    expected = expect(task, case)
    found = attention.kernel(name)(expected.values, fault=attention.faults(name)[label])
    comparison = compared(name, case, found)[output]
    assert words in " ".join(explain(comparison, expected, task.reference()))


def test_the_whole_allows_for_roundings_of_few_rows_alone() -> None:
    alike = np.full((2, 50, 4), 0.5)
    one = np.zeros((2, 50, 4))
    one[1, 7] = 0.5
    assert references._chance(alike) == pytest.approx(np.linalg.norm(alike) / 10)
    assert references._chance(one) == pytest.approx(np.linalg.norm(one)) == 1.0
    assert references._chance(np.zeros((2, 50))) == 0.0


def table(secrets: int) -> str:
    """Return, in Markdown, the least and greatest excess of every kernel over several secrets."""
    lines = []
    for name in TASKS:
        kinds = (("honest", "style", attention.honest(name)), ("wrong", "fault", attention.faults(name)))
        for kind, key, kernels in kinds:
            lines += [
                "",
                f"| `{name}`, {kind} | normal | shifted | cancelling | sharp |",
                "| --- | --- | --- | --- | --- |",
            ]
            for label, how in kernels.items():
                seen = defaultdict(list)
                for secret in range(secrets):
                    for case in drawn(name, str(secret).encode()).cases:
                        seen[case.draw].append(excess(name, case, **{key: how}))
                values = (seen[draw] for draw in ("normal", "shifted", "cancelling", "sharp"))
                shown = [max(found) if kind == "honest" else min(found) for found in values]
                cells = (f"**{value:.3g}**" if value > 1 else f"{value:.2f}" for value in shown)
                lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table(int(sys.argv[1]) if len(sys.argv) > 1 else 1) + "\n")
