"""A sweep that is killed twice ends as one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.killing import compare


@pytest.mark.parametrize("kills", [(2, 7)])
def test_killed_twice_and_resumed_it_equals_an_undisturbed_run(tmp_path: Path, kills: tuple[int, ...]) -> None:
    result = compare(tmp_path, ("PTX-Gemm-H100", "PTX-Gemm-B200"), kills)
    turns, episodes = result.undisturbed["turns"], result.undisturbed["episodes"]
    assert len(episodes) == 2 * (1 + 1 + 1 + 2)
    assert len(turns) == 2 * (1 + 1 + 3 + 2 * 3)
    assert kills[0] <= result.killed_at[0] <= result.killed_at[1] < len(turns)
    assert result.disturbed == result.undisturbed

    asked, again = result.asked
    assert asked == 2 * 2 * 3
    assert asked <= again <= asked + 3 * len(kills)  # a call that a kill cuts off is lost with its process

    codes = {turn["verdict"]["code"] for turn in turns.values()}
    assert {"submission.no_code", "judge.ok"} <= codes
    best = {name: episode["best_score"] for name, episode in episodes.items()}
    assert {score for name, score in best.items() if "/oracle/" in name} == {0.5}
    assert {score for name, score in best.items() if "/naive/" in name} == {0.2}
    assert {score for name, score in best.items() if "/replay/" in name} == {0.0}
    assert {score for name, score in best.items() if "/model/" in name} == {0.5}
