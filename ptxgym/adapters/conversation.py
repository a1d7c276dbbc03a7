"""An episode in tokens, for trainers that want what the policy sampled and a mask of what it did not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ptxgym.adapters.group import Member
from ptxgym.adapters.rollout import Rollout
from ptxgym.errors import InfrastructureError, UsageError

Sampled = tuple[Sequence[int], Sequence[float] | None]
"""Token ids of an answer, its end of turn included, and the logprob of each, or None where they are not known."""
NO_MEMBER = Member(task="", texts=(), reward=None, circumstances=frozenset())
"""A rollout that could not begin."""


class Conversation:
    """One episode in tokens: what the policy wrote stays as it was sampled, and is never tokenised again."""

    def __init__(
        self, rollout: Rollout | None, prompt: str, tokenizer: Any, room: int, ends: Collection[int] = ()
    ) -> None:
        """Begin.

        Args:
            rollout: Not yet begun; None where the machine failed before it could be.
            prompt: Stands for the task where there is no rollout.
            tokenizer: Of transformers, with a chat template.
            room: Tokens that all answers and feedback may take.
            ends: Tokens that end an answer, beside the tokenizer's end-of-sequence token.

        Raises:
            UsageError: if the tokenizer has no chat template.
        """
        self._rollout = rollout
        self._tokenizer = tokenizer
        self._room = room
        self._ends = {tokenizer.eos_token_id, *ends}
        self._over = False
        opening = prompt if rollout is None else rollout.opening()  # where a GPU measures it says more than the row
        self.prompt_ids = _tokens(tokenizer, _templated(tokenizer, [{"role": "user", "content": opening}], True))
        self.completion_ids: list[int] = []
        self.logprobs: list[float] | None = []
        """Of all tokens; None where those of an answer are not known."""
        self.mask: list[int] = []

    @property
    def rollout(self) -> Rollout | None:
        """The episode; None where the machine failed before it could begin."""
        return self._rollout

    @property
    def ids(self) -> list[int]:
        """All tokens so far."""
        return [*self.prompt_ids, *self.completion_ids]

    @property
    def member(self) -> Member:
        """The episode as one of its group."""
        return NO_MEMBER if self._rollout is None else self._rollout.member

    @property
    def open(self) -> bool:
        """Whether the policy is to go on: the episode does, and there is room for more tokens."""
        if self._rollout is None:
            return not self._over  # a trainer needs a completion even where it counts for nothing
        return not self._over and not self._rollout.done and len(self.completion_ids) < self._room

    async def answer(self, sampled: Sampled, policy: str = "") -> None:
        """Take what the policy wrote, as far as there is room, judge it, and append the feedback.

        Feedback that no answer can follow is left out: trainers put the reward on the last token, and some ignore what
        lies on tokens that the policy did not write. Where the machine keeps failing the rollout is lost, and the
        conversation over.

        Args:
            sampled: What it wrote.
            policy: Which version of the policy that was, where the trainer knows.

        Raises:
            UsageError: if the chat template rewrites earlier turns, or ends answers in a way of its own.
        """
        ids = self._append(*sampled, 1)
        if self._rollout is None:
            if not ids:
                self._append([self._tokenizer.eos_token_id], [0.0], 0)
            self._over = True
            return
        whole = bool(ids) and ids[-1] in self._ends
        try:
            text = self._tokenizer.decode(ids, skip_special_tokens=True)
            turn = await self._rollout.aanswer(text, cut_off=not whole, policy=policy)
        except InfrastructureError:
            return
        if not turn.done:
            said = _tokens(self._tokenizer, _next_turn(self._tokenizer, turn.feedback, closed=whole))
            self._append(said, [0.0] * len(said), 0)
        if not self.open:
            self._end()

    def _end(self) -> None:
        """Let the last token be the policy's, where it wrote any."""
        self._over = True
        kept = max((at + 1 for at, own in enumerate(self.mask) if own), default=len(self.mask))
        del self.completion_ids[kept:], self.mask[kept:]
        if self.logprobs is not None:
            del self.logprobs[kept:]

    def _append(self, ids: Sequence[int], logprobs: Sequence[float] | None, mask: int) -> list[int]:
        kept = list(ids)[: self._room - len(self.completion_ids)]
        self.completion_ids += kept
        if logprobs is None or self.logprobs is None:
            self.logprobs = None
        else:
            self.logprobs += list(logprobs)[: len(kept)]
        self.mask += [mask] * len(kept)
        return kept


def _templated(tokenizer: Any, messages: list[dict[str, str]], asks: bool) -> str:
    if not tokenizer.chat_template:
        raise UsageError("the tokenizer has no chat template, so no conversation can be written for its model; set one")
    text: str = tokenizer.apply_chat_template(messages, add_generation_prompt=asks, tokenize=False)
    return text


def _next_turn(tokenizer: Any, feedback: str, closed: bool) -> str:
    """Return what a conversation goes on with behind an answer, up to where the next one begins.

    Args:
        tokenizer: Whose chat template ends each answer with its end-of-sequence token.
        feedback: The user's next message.
        closed: Whether the answer is over: it ends by that token, or by another that ends the policy's.
    """
    before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    end = tokenizer.eos_token
    said = _templated(tokenizer, before, False)
    head = said[: said.rindex(end) + len(end)] if end in said else said
    whole = _templated(tokenizer, [*before, {"role": "user", "content": feedback}], True)
    if not whole.startswith(head):
        raise UsageError("the chat template rewrites earlier turns; `rollout_func` needs one that only appends")
    if end not in said:
        raise UsageError(
            f"the chat template does not end answers with {end!r}, the tokenizer's end-of-sequence token; "
            "set the one that it ends them with as `eos_token`"
        )
    return ("" if closed else end) + whole[len(head) :]


def _tokens(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
