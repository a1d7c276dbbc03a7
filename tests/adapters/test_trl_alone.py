"""The adapter for TRL over stand-ins, for what needs no training: `test_trl.py` runs it in TRL itself."""

from __future__ import annotations

import asyncio
from types import ModuleType

import pytest

from ptxgym.errors import UsageError
from ptxgym.evaluator import Evaluator
from tests.adapters import trl_stand_in
from tests.adapters.conftest import NOTHING
from tests.adapters.letters import END, END_OF_TEXT
from tests.adapters.trl_stand_in import CHECKPOINTING, Model, trainer

ROW = {"env": "PTX-Gemm-H100", "options": {"variant": "k64", "turns": 1}, "prompt": "Write the kernel."}
HALF = "```cuda\nextern"


@pytest.fixture
def trl(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return trl_stand_in.adapter(monkeypatch)


def text(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def test_an_answer_ends_with_any_token_that_ends_the_trainers(trl: ModuleType) -> None:
    said = (f"One.{END}", f"Another one.{END_OF_TEXT}", "A third, which is cut off.")
    asked = [[1], [1, 2], [1]]
    sampled = trl.generate(asked, trainer(Model(said), (END, END_OF_TEXT)))
    assert [text(ids) for ids, _ in sampled] == list(said)
    alone = trl.generate(asked, trainer(Model(said), (END,)))  # the control: here that token is one like any other
    assert text(alone[1][0]) == f"Another one.{END_OF_TEXT}".ljust(len(said[2]), END_OF_TEXT)


@pytest.mark.parametrize(
    ("end", "ends", "code"),
    [
        (END_OF_TEXT, (END, END_OF_TEXT), "submission.no_code"),
        (END, (END, END_OF_TEXT), "submission.no_code"),
        (END_OF_TEXT, (END,), "submission.truncated_response"),
        ("", (END, END_OF_TEXT), "submission.truncated_response"),
    ],
)
def test_only_an_answer_without_an_end_is_cut_off(
    trl: ModuleType, evaluator: Evaluator, end: str, ends: tuple[str, ...], code: str
) -> None:
    codes: list[str] = []
    rollouts = trl.KernelRollouts(
        [ROW], evaluator=evaluator, on_rollout=lambda played: codes.append(played.episode.turns[0].verdict.code)
    )
    played = rollouts([ROW["prompt"]], trainer(Model([NOTHING + end]), ends))
    assert (codes, text(played["completion_ids"][0])) == ([code], NOTHING + end)


def test_the_default_sampler_keeps_no_scores_and_gives_no_logprobs(trl: ModuleType, evaluator: Evaluator) -> None:
    model = Model([NOTHING + END] * 2)
    with_it = trainer(model, (END,), room=1000)
    assert trl.generate([[1], [1]], with_it) == [([ord(each) for each in NOTHING + END], None)] * 2
    assert model.asked == {"generation_config": with_it.generation_config}, "scores of each step fill the memory"
    played = trl.KernelRollouts([ROW], evaluator=evaluator)([ROW["prompt"]] * 2, with_it)
    assert played["logprobs"] is None and [sum(mask) for mask in played["env_mask"]] == [len(NOTHING) + 1] * 2
    given = iter(([-0.5] * len(NOTHING), [-0.5] * len(NOTHING)))

    def sample(asked: list[list[int]], _: object) -> list[tuple[list[int], list[float] | None]]:
        return [([ord(each) for each in NOTHING], next(given, None)) for _ in asked]

    rollouts = trl.KernelRollouts([ROW], sample, evaluator)
    played = rollouts([ROW["prompt"]] * 2, with_it)  # the control: a sampler that knows them
    assert played["logprobs"] == [[-0.5] * len(NOTHING)] * 2
    assert rollouts([ROW["prompt"]] * 2, with_it)["logprobs"] is None


def test_it_samples_with_what_stands_before_each_token_and_leaves_the_model_as_it_trains(trl: ModuleType) -> None:
    model = Model([NOTHING + END])
    assert len(trl.generate([[1]], trainer(model, (END,)))) == 1, "gradient checkpointing was off"
    assert model.checkpointing == CHECKPOINTING, "and is on again, as the trainer wants it"
    model.checkpointing = None
    trl.generate([[1]], trainer(model, (END,)))
    assert model.checkpointing is None, "the control: what does not checkpoint does not after"


def test_rows_that_no_prompt_tells_apart_are_refused(trl: ModuleType, evaluator: Evaluator) -> None:
    other = {**ROW, "options": {**ROW["options"], "turns": 2}}
    for rows in ([ROW, other], [ROW, {**ROW, "env": "PTX-Gemm-B200"}]):
        with pytest.raises(UsageError, match="two rows have the prompt 'Write the kernel"):
            trl.KernelRollouts(rows, evaluator=evaluator)
    turns: list[int] = []
    rollouts = trl.KernelRollouts(
        [ROW, dict(ROW), {**other, "prompt": "And another."}],
        evaluator=evaluator,
        on_rollout=lambda played: turns.append(played.episode.config.turns),
    )
    played = rollouts([ROW["prompt"], "And another."], trainer(Model([NOTHING] * 2), (END,), room=len(NOTHING)))
    assert turns == [1, 2] and len(played["member"]) == 2


def test_it_trains_in_a_notebook_whose_loop_runs(trl: ModuleType, evaluator: Evaluator) -> None:
    rollouts = trl.KernelRollouts([ROW], evaluator=evaluator)

    async def cell() -> float | None:
        played = rollouts([ROW["prompt"]], trainer(Model([NOTHING + END]), (END,)))
        return played["member"][0].reward  # type: ignore[no-any-return]

    assert asyncio.run(cell()) == 0.0
