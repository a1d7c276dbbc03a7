"""GRPO on the environment: TRL's trainer over `ptxgym.adapters.trl`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ptxgym
from ptxgym import content
from ptxgym.adapters.rollout import Rollout, dataset_rows
from ptxgym.envs import load_env
from ptxgym.errors import UnknownNameError
from ptxgym.evaluator import Evaluator
from ptxgym.extras import need
from ptxgym.train.parts import (
    EXTRA,
    WHO,
    adapters,
    callback,
    load_tokenizer,
    packages,
    save_whole,
    trainer_config,
)
from ptxgym.train.recipe import GrpoRecipe
from ptxgym.train.run import CHECKPOINTS, CURRICULUM, Front, Log, TrainRun
from ptxgym.train.sft import Trained


def grpo(
    recipe: GrpoRecipe,
    folder: Path,
    *,
    resume: bool = False,
    logs: Sequence[Log] = (),
    on_rollout: Callable[[Rollout], None] = lambda rollout: None,
    evaluator: Evaluator | None = None,
) -> Trained:
    """Train a model on episodes.

    Args:
        recipe: What is trained, on what, and how.
        folder: Of the run; new, or one to go on with.
        resume: Whether to go on from its last checkpoint.
        logs: Get what is logged, beside `metrics.jsonl`.
        on_rollout: Gets every rollout of this process when it is over.
        evaluator: Judges; by default one for the recipe's device and tier, with the secret in `PTXGYM_SECRET`.

    Raises:
        UsageError: if recipe or folder do not fit, or TRL or PEFT is missing.
        InfrastructureError: if the folder cannot be written.
    """
    rows = training_rows(recipe)
    trl, datasets = need("trl", WHO, EXTRA), need("datasets", WHO, EXTRA)
    settings = trainer_config(trl.GRPOConfig, recipe.trainer, output_dir=str(folder / CHECKPOINTS), seed=recipe.seed)
    tokenizer = load_tokenizer(recipe)
    judge = evaluator if evaluator is not None else Evaluator(recipe.device, tier=recipe.tier)
    try:
        Rollout.of_row(rows[0], judge)  # options that an episode does not take are told before a run begins
        beside = () if recipe.curriculum is None else (CURRICULUM,)
        run = TrainRun(folder, front_of(recipe, rows), resume=resume, beside=beside)
        from ptxgym.adapters.trl import KernelRollouts, kernel_reward
        from ptxgym.train.drawing import DrawnRollouts, saving

        callbacks = [callback(run.writer(tuple(logs)))]
        if recipe.curriculum is None:
            rollouts = KernelRollouts(rows, evaluator=judge, on_rollout=on_rollout)
        else:
            rollouts = DrawnRollouts(rows, recipe.curriculum, recipe.seed, run.checkpoint, judge, on_rollout)
            callbacks.append(saving(rollouts.curriculum))
        trainer = trl.GRPOTrainer(
            model=recipe.model,
            args=settings,
            processing_class=tokenizer,
            train_dataset=datasets.Dataset.from_list(rows),
            reward_funcs=[kernel_reward],
            rollout_func=rollouts,
            peft_config=adapters(recipe.lora),
            callbacks=callbacks,
        )
        trainer.train(resume_from_checkpoint=None if run.checkpoint is None else str(run.checkpoint))
    finally:
        if evaluator is None:
            judge.close()
    steps = trainer.state.global_step
    return Trained(save_whole(trainer, tokenizer, folder), steps, run.metrics(), len(rows))


def front_of(recipe: GrpoRecipe, rows: Sequence[Mapping[str, Any]]) -> Front:
    """Return what a run on such rows is."""
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    return Front(method="grpo", recipe=recipe, data_sha256=digest, ptxgym=ptxgym.__version__, packages=packages())


def training_rows(recipe: GrpoRecipe) -> list[dict[str, Any]]:
    """Return the rows that a recipe trains on, easier ones first; held-out variants are never among them.

    Raises:
        UnknownNameError: if an environment or a variant is none of them; suggests the nearest.
    """
    for env in recipe.envs:
        load_env(env)
    rows = dataset_rows("train", recipe.envs or None)
    known = {str(row["options"]["variant"]) for row in rows}
    for variant in recipe.variants:
        if variant not in known:
            raise UnknownNameError(content.unknown("variant to train on", variant, known))
    kept = [row for row in rows if not recipe.variants or row["options"]["variant"] in recipe.variants]
    kept.sort(key=lambda row: int(row["difficulty"]))
    return [{**row, "options": {**recipe.options, **row["options"]}} for row in kept]
