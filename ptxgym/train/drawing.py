"""GRPO on what a curriculum draws: a group plays one item, and its outcomes are told before the next draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ptxgym.adapters.group import ROUNDING
from ptxgym.adapters.rollout import Rollout
from ptxgym.adapters.trl import KernelRollouts
from ptxgym.curriculum import Curriculum, variant_items
from ptxgym.errors import UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.extras import need
from ptxgym.train.parts import EXTRA, WHO
from ptxgym.train.recipe import Band
from ptxgym.train.run import CURRICULUM


class DrawnRollouts(KernelRollouts):
    """Plays, for each group that TRL asks for, the row of an item that the curriculum draws instead of TRL's row."""

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        band: Band,
        seed: int,
        checkpoint: Path | None,
        evaluator: Evaluator,
        on_rollout: Callable[[Rollout], None] = lambda rollout: None,
    ) -> None:
        """Begin, or go on from a checkpoint.

        Args:
            rows: What may be drawn, as `training_rows` makes them.
            band: Of the rates of success.
            seed: Of the draws.
            checkpoint: Its folder.
            evaluator: Judges.
            on_rollout: Gets every rollout; see `KernelRollouts`.

        Raises:
            ContentError: if the checkpoint holds no state of a curriculum.
        """
        super().__init__(rows, evaluator=evaluator, on_rollout=on_rollout)
        self._prompts = {f"{row['env']}/{row['options']['variant']}": str(row["prompt"]) for row in rows}
        envs = sorted({str(row["env"]) for row in rows})
        items = [item for item in variant_items(*envs) if item.key in self._prompts]
        self._success = band.success
        self.curriculum = (
            Curriculum(items, seed=seed, band=(band.low, band.high))
            if checkpoint is None
            else Curriculum.load(checkpoint / CURRICULUM, items)
        )

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """Play one item a group; see `KernelRollouts`.

        Raises:
            UsageError: if a group is not whole in this process: draws are those of one process.
        """
        size = trainer.num_generations
        if trainer.accelerator.num_processes > 1 or len(prompts) % size:
            raise UsageError(
                f"a curriculum needs one process, and batches of whole groups: {len(prompts)} rollouts in groups of "
                f"{size} in {trainer.accelerator.num_processes} processes; leave [curriculum] out of the recipe, or "
                "make per_device_train_batch_size a multiple of num_generations"
            )
        keys = [self.curriculum.draw().key for _ in range(len(prompts) // size)]
        played = super().__call__([self._prompts[key] for key in keys for _ in range(size)], trainer)
        for at, member in enumerate(played["member"]):
            reward = member.reward
            self.curriculum.tell(keys[at // size], None if reward is None else reward + ROUNDING >= self._success)
        return played


def saving(curriculum: Curriculum) -> Any:
    """Return a callback for the trainer that puts the curriculum's state into each checkpoint."""
    transformers = need("transformers", WHO, EXTRA)

    class Saving(transformers.TrainerCallback):  # type: ignore[name-defined, misc]  # the library is imported here
        """Saves."""

        def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            """Write beside the trainer's state."""
            curriculum.save(Path(args.output_dir) / f"checkpoint-{state.global_step}" / CURRICULUM)

    return Saving()
