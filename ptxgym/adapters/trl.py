"""TRL: GRPO over episodes, by tool calls (`environment_factory`) or by fenced answers (`rollout_func`).

In both the reward is a function over the whole batch, `kernel_reward`, so that groups are checked: mixed conditions are
refused, equal texts are paid alike, and a rollout that the machine failed at gets None, which TRL leaves out of its
group's mean and deviation and gives no advantage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ptxgym.adapters.conversation import NO_MEMBER, Conversation, Sampled
from ptxgym.adapters.group import Member, group_rewards
from ptxgym.adapters.rollout import Rollout
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.extras import missing

try:
    import torch
    from accelerate import PartialState
    from accelerate.utils import gather_object
    from trl.models import unwrap_model_for_generation
except ImportError as error:
    raise missing("trl", "this adapter needs", "trl") from error

_LOST = "The machine failed; this attempt does not count."


class KernelEnvironment:
    """An episode behind one tool, for `environment_factory`. TRL makes one per rollout and resets it."""

    def __init__(self, evaluator: Evaluator | None = None) -> None:
        """Make an environment; all that are made without an evaluator share the process's."""
        self._evaluator = evaluator if evaluator is not None else Evaluator.shared()
        self._rollout: Rollout | None = None

    def reset(self, env: str, options: Mapping[str, Any] | None = None, **ignored: Any) -> str | None:
        """Begin the episode of a row.

        Returns:
            The task, which TRL appends to the last message of the row's prompt.

        Raises:
            UsageError: if the environment is unknown, or an option is not acceptable.
        """
        self._rollout = None
        try:
            self._rollout = Rollout.of_row({"env": env, "options": options}, self._evaluator)
        except InfrastructureError:
            return None
        return self._rollout.opening()

    async def submit_kernel(self, answer: str) -> str:
        """Submit a kernel file, which is compiled, executed and judged.

        Args:
            answer: The whole kernel file in a fenced block that starts with ```cuda.

        Returns:
            What is wrong with it, or what it achieved.
        """
        if self._rollout is None or self._rollout.lost:
            return _LOST
        if self._rollout.done:
            return "The episode is over; no further submission counts."
        try:
            turn = await self._rollout.aanswer(answer)
        except InfrastructureError:
            return _LOST
        return turn.feedback

    def _member(self) -> Member:
        return NO_MEMBER if self._rollout is None else self._rollout.member


def kernel_reward(
    environments: Sequence[KernelEnvironment] | None = None, member: Sequence[Member] | None = None, **ignored: Any
) -> list[float | None]:
    """Return the rewards of a batch; for `reward_funcs`.

    Args:
        environments: What `environment_factory` made, as TRL passes it.
        member: What `KernelRollouts` returned, as TRL passes it.
        ignored: What else TRL passes.

    Raises:
        MixedConditionsError: if rollouts of one task, in any process, were judged under different conditions.
    """
    mine = list(member) if member is not None else [each._member() for each in environments or ()]
    rewards = group_rewards(gather_object(mine))
    first = PartialState().process_index * len(mine)
    return rewards[first : first + len(mine)]


Sample = Callable[[Sequence[Sequence[int]], Any], Sequence[Sampled]]
"""(conversations in token ids, trainer) → what the policy says next in each."""


def generate(conversations: Sequence[Sequence[int]], trainer: Any) -> list[Sampled]:
    """Sample with the trainer's own model and generation settings, by transformers.

    Without logprobs, as where TRL itself samples so: scores of every step are hundreds of gigabytes for long answers.
    """
    tokenizer, settings = trainer.processing_class, trainer.args
    batch = tokenizer.pad({"input_ids": [list(ids) for ids in conversations]}, padding_side="left", return_tensors="pt")
    unwrapped = unwrap_model_for_generation(  # with gradient checkpointing, layers would keep no cache
        trainer.model_wrapped,
        trainer.accelerator,
        gather_deepspeed3_params=settings.ds3_gather_for_generation,
        gradient_checkpointing_kwargs=settings.gradient_checkpointing_kwargs,
    )
    with unwrapped as model, torch.no_grad():
        batch = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
        out = model.generate(**batch, generation_config=trainer.generation_config)
    answers = out[:, batch["input_ids"].shape[1] :].tolist()
    return [(_until_end(ids, trainer.eos_token_ids), None) for ids in answers]


class KernelRollouts:
    """Conversations of fenced answers, for `rollout_func`: asks no tool calls of the model or its template."""

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        sample: Sample = generate,
        evaluator: Evaluator | None = None,
        on_rollout: Callable[[Rollout], None] = lambda rollout: None,
    ) -> None:
        """Make it.

        Args:
            rows: The data set, as `dataset_rows` makes it: TRL hands over prompts alone, so a row is known by its own.
            sample: Asks the policy; by default by transformers.
            evaluator: Shared by all rollouts; by default that of the process.
            on_rollout: Gets every rollout that could begin, when its conversation is over.

        Raises:
            UsageError: if rows of one prompt ask for different episodes.
        """
        self._on_rollout = on_rollout
        self._rows = _by_prompt(rows)
        self._sample = sample
        self._evaluator = evaluator if evaluator is not None else Evaluator.shared()

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """Play one episode per prompt, all side by side.

        Returns:
            `prompt_ids`, `completion_ids`, `logprobs` (None where the sampler does not know them), `env_mask` (1 where
            the policy wrote, 0 for feedback) and `member`, which `kernel_reward` reads.

        Raises:
            UsageError: if a prompt is of no row, or the tokenizer's chat template cannot continue a conversation.
        """
        room, ends = trainer.max_completion_length, trainer.eos_token_ids
        plays = [Conversation(self._begin(each), each, trainer.processing_class, room, ends) for each in prompts]
        while open_ := [play for play in plays if play.open]:
            sampled = self._sample([play.ids for play in open_], trainer)
            _run(_answer_all(open_, sampled))
        for play in plays:
            if play.rollout is not None:
                self._on_rollout(play.rollout)
        logprobs = [play.logprobs for play in plays]
        return {
            "prompt_ids": [play.prompt_ids for play in plays],
            "completion_ids": [play.completion_ids for play in plays],
            "logprobs": None if None in logprobs else logprobs,
            "env_mask": [play.mask for play in plays],
            "member": [play.member for play in plays],
        }

    def _begin(self, prompt: str) -> Rollout | None:
        if prompt not in self._rows:
            raise UsageError("a prompt is of none of the rows; pass the rows that the data set was made of")
        try:
            return Rollout.of_row(self._rows[prompt], self._evaluator)
        except InfrastructureError:
            return None


def _by_prompt(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        first = found.setdefault(row["prompt"], row)
        if any(first.get(name) != row.get(name) for name in ("env", "options")):
            raise UsageError(
                f"two rows have the prompt {row['prompt'][:60]!r} and ask for different episodes, which TRL could not "
                "tell apart; give each a prompt of its own: the policy reads the task, not the prompt"
            )
    return found


async def _answer_all(plays: Sequence[Conversation], sampled: Sequence[Sampled]) -> None:
    await asyncio.gather(*(play.answer(said) for play, said in zip(plays, sampled, strict=True)))


def _run(answers: Coroutine[Any, Any, None]) -> None:
    """Wait for answers; in a thread of their own where this one has a loop that runs, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(answers)
        return
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, answers).result()


def _until_end(ids: list[int], ends: Collection[int]) -> list[int]:
    """Cut off what a batch pads behind the end of a turn."""
    return ids[: next((at + 1 for at, token in enumerate(ids) if token in ends), len(ids))]
