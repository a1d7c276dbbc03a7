"""What a curriculum is told of rollouts, over stand-ins for TRL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ptxgym.adapters.rollout import dataset_rows
from ptxgym.evaluator import Evaluator
from ptxgym.train.recipe import Band
from tests.adapters import trl_stand_in
from tests.adapters.trl_stand_in import Model, trainer

ENV = "PTX-Gemm-H100"


def test_rewards_that_sum_to_the_bar_but_for_rounding_are_successes(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = trl_stand_in.adapter(monkeypatch, "ptxgym.train.drawing")
    rewards = [0.10 + 0.35 + 0.05, 0.5, 0.45, None]
    assert rewards[0] < 0.5, "what three turns paid"

    def played(self: Any, prompts: Any, trainer: Any) -> dict[str, Any]:
        return {"member": [SimpleNamespace(reward=reward) for reward in rewards]}

    monkeypatch.setattr(drawing.KernelRollouts, "__call__", played)
    rows = [row for row in dataset_rows("train", [ENV]) if row["options"]["variant"] == "k64"]
    with Evaluator("emulator") as evaluator:
        rollouts = drawing.DrawnRollouts(rows, Band(success=0.5), 0, None, evaluator)
    with_it = trainer(Model([]), ())
    with_it.num_generations, with_it.accelerator.num_processes = 4, 1
    rollouts(["?"] * 4, with_it)
    assert rollouts.curriculum.state.outcomes == {f"{ENV}/k64": "110"}
