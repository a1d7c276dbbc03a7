"""Conversations in tokens, with a tokenizer of characters."""

from __future__ import annotations

import asyncio

import pytest

from ptxgym.adapters.conversation import Conversation, Sampled
from ptxgym.adapters.rollout import Rollout
from ptxgym.errors import UsageError
from ptxgym.evaluator import Evaluator
from tests.adapters.conftest import NOTHING
from tests.adapters.letters import END, END_OF_TEXT, Letters

ROW = {"env": "PTX-Gemm-H100", "options": {"turns": 2}}
LETTERS = Letters()


def said(text: str) -> Sampled:
    return [ord(letter) for letter in text], [-1.0] * len(text)


def conversation(evaluator: Evaluator, room: int, tokenizer: Letters = LETTERS) -> Conversation:
    return Conversation(Rollout.of_row(ROW, evaluator), "", tokenizer, room)


def feedback_of(evaluator: Evaluator) -> int:
    """Return how many tokens the feedback on `NOTHING` takes."""
    play = conversation(evaluator, 10_000)
    asyncio.run(play.answer(said(NOTHING + END)))
    return play.mask.count(0)


def test_the_last_token_is_the_policys_where_feedback_leaves_no_room(evaluator: Evaluator) -> None:
    feedback, answer = feedback_of(evaluator), len(NOTHING) + 1
    assert feedback > 20
    for room in (answer, answer + 10, answer + feedback):
        play = conversation(evaluator, room)
        asyncio.run(play.answer(said(NOTHING + END)))
        assert not play.open and play.member.reward == 0.0
        assert LETTERS.decode(play.completion_ids) == NOTHING + END
        assert (play.mask, play.logprobs) == ([1] * answer, [-1.0] * answer)
    play = conversation(evaluator, answer + feedback + 1)  # the control: an answer of one token fits
    asyncio.run(play.answer(said(NOTHING + END)))
    assert play.open and play.mask == [1] * answer + [0] * feedback
    asyncio.run(play.answer(said(NOTHING)))
    assert not play.open and play.mask == [1] * answer + [0] * feedback + [1]


def test_an_answer_of_no_tokens_ends_no_conversation_with_feedback(evaluator: Evaluator) -> None:
    play = conversation(evaluator, 10_000)
    asyncio.run(play.answer(said(NOTHING + END)))
    assert play.open and not play.mask[-1]
    asyncio.run(play.answer(said("")))
    assert not play.open and LETTERS.decode(play.completion_ids) == NOTHING + END
    silent = conversation(evaluator, 10_000)
    asyncio.run(silent.answer(said("")))
    asyncio.run(silent.answer(said("")))
    assert not silent.open and silent.completion_ids and not any(silent.mask), "a trainer needs a completion"


def test_a_rollout_that_could_not_begin_asks_the_policy_once() -> None:
    for text, own in (("Anything.", [1] * 9), ("", [0])):
        play = Conversation(None, "The task.", LETTERS, 100)  # type: ignore[arg-type]
        assert play.open
        asyncio.run(play.answer(said(text)))
        assert not play.open and play.mask == own and len(play.completion_ids) == len(own)


def test_an_answer_that_ends_by_another_end_token_goes_on_as_it_was_sampled(evaluator: Evaluator) -> None:
    ends = {ord(END_OF_TEXT)}
    written = {}
    for end in (END, END_OF_TEXT, ""):
        play = Conversation(Rollout.of_row(ROW, evaluator), "", LETTERS, 10_000, ends)
        asyncio.run(play.answer(said(NOTHING + end)))
        written[end] = LETTERS.decode(play.completion_ids)
    follows = written[END].removeprefix(NOTHING + END)
    assert follows.startswith("\n<user>") and follows.endswith("<assistant>")
    assert written[END_OF_TEXT] == NOTHING + END_OF_TEXT + follows
    assert written[""].startswith(f"{NOTHING}{END}\n<user>"), "an answer that was cut off is closed"


def test_a_template_that_ends_answers_by_another_token_is_refused(evaluator: Evaluator) -> None:
    play = conversation(evaluator, 10_000, Letters(end="</turn>"))
    with pytest.raises(UsageError, match=r"does not end answers with .*; set the one that it ends them with"):
        asyncio.run(play.answer(said(NOTHING + END)))


def test_logprobs_of_an_answer_that_are_not_known_make_those_of_all_unknown(evaluator: Evaluator) -> None:
    for first, second in (([-1.0], None), (None, [-1.0])):
        play = conversation(evaluator, 10_000)
        asyncio.run(play.answer(([ord("a")], first)))
        asyncio.run(play.answer(([ord("b")], second)))
        assert play.logprobs is None and play.mask[0] == play.mask[-1] == 1
    play = conversation(evaluator, 10_000)
    asyncio.run(play.answer(([ord("a")], [-1.0])))
    asyncio.run(play.answer(([ord("b")], [-2.0])))
    assert play.logprobs == [-1.0, *[0.0] * (len(play.mask) - 2), -2.0]
