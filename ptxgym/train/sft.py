"""SFT on a Fixit set: the loss is on completions alone, rationale and repaired kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ptxgym
from ptxgym.errors import UsageError
from ptxgym.extras import need
from ptxgym.fixit.pack import problems, read_manifest, read_rows
from ptxgym.fixit.records import Row
from ptxgym.fixit.sampling import shuffled
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
from ptxgym.train.recipe import SftRecipe
from ptxgym.train.run import CHECKPOINTS, Front, Log, Metrics, TrainRun


@dataclass(frozen=True)
class Trained:
    """What came of a run."""

    model: Path
    """Folder of the whole model."""
    steps: int
    metrics: tuple[Metrics, ...]
    """All that was logged, by the sittings before as well."""
    rows: int
    """That were trained on."""
    too_long: int = 0
    """Rows left out because they have too many tokens."""


def sft(
    recipe: SftRecipe,
    folder: Path,
    *,
    resume: bool = False,
    logs: Sequence[Log] = (),
    on_note: Callable[[str], None] = lambda note: None,
) -> Trained:
    """Train a model on a set.

    Args:
        recipe: What is trained, on what, and how.
        folder: Of the run; new, or one to go on with.
        resume: Whether to go on from its last checkpoint.
        logs: Get what is logged, beside `metrics.jsonl`.
        on_note: Gets what a user should know.

    Raises:
        UsageError: if recipe, set or folder do not fit, TRL or PEFT is missing, or no row is left.
        InfrastructureError: if the folder cannot be written.
    """
    rows, sha256 = _rows(recipe)
    trl, datasets = need("trl", WHO, EXTRA), need("datasets", WHO, EXTRA)
    settings = trainer_config(
        trl.SFTConfig,
        recipe.trainer,
        output_dir=str(folder / CHECKPOINTS),
        seed=recipe.seed,
        max_length=recipe.most_tokens,
        completion_only_loss=True,
    )
    tokenizer = load_tokenizer(recipe)
    kept = [row for row in rows if _tokens(row, tokenizer) <= recipe.most_tokens]
    if len(kept) < len(rows):
        on_note(f"{len(rows) - len(kept)} of {len(rows)} rows have more than {recipe.most_tokens} tokens; left out")
    learnt, held_out = kept[recipe.held_out :], kept[: recipe.held_out]
    if not learnt:
        raise UsageError(
            f"no row is left to train on: {len(rows)} in the set, {len(rows) - len(kept)} of more than most_tokens = "
            f"{recipe.most_tokens} tokens, held_out = {recipe.held_out}"
        )
    front = Front(method="sft", recipe=recipe, data_sha256=sha256, ptxgym=ptxgym.__version__, packages=packages())
    run = TrainRun(folder, front, resume=resume)
    trainer = trl.SFTTrainer(
        model=recipe.model,
        args=settings,
        processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_list([_chat(row) for row in learnt]),
        eval_dataset=datasets.Dataset.from_list([_chat(row) for row in held_out]) if held_out else None,
        peft_config=adapters(recipe.lora),
        callbacks=[callback(run.writer(tuple(logs)))],
    )
    trainer.train(resume_from_checkpoint=None if run.checkpoint is None else str(run.checkpoint))
    steps = trainer.state.global_step
    return Trained(save_whole(trainer, tokenizer, folder), steps, run.metrics(), len(learnt), len(rows) - len(kept))


def _rows(recipe: SftRecipe) -> tuple[list[Row], str]:
    """Return the rows of the set, those to hold out first, and their hash."""
    if not recipe.data:
        raise UsageError(
            f'recipe {recipe.name} names no set: write data = "…" into it, or --set data=DIR; `ptxgym fixit build` '
            "makes one"
        )
    folder = Path(recipe.data)
    if found := problems(folder):
        raise UsageError(f"{folder} is not as its manifest says: {found[0]}; build the set again")
    return shuffled(read_rows(folder), recipe.seed, lambda row: row.id), read_manifest(folder).rows_sha256


def _chat(row: Row) -> dict[str, list[dict[str, str]]]:
    return {
        name: [{"role": message.role, "content": message.content} for message in messages]
        for name, messages in (("prompt", row.prompt), ("completion", row.completion))
    }


def _tokens(row: Row, tokenizer: Any) -> int:
    chat = _chat(row)
    ids = tokenizer.apply_chat_template(chat["prompt"] + chat["completion"], tokenize=True, return_dict=True)
    return len(ids["input_ids"])
