"""What SFT and GRPO take from transformers and PEFT: the tokenizer, adapters, a callback, the model at the end."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ptxgym.errors import UsageError
from ptxgym.extras import need
from ptxgym.train.recipe import Lora, TrainRecipe, check_trainer
from ptxgym.train.run import MODEL, Log, numbers

WHO, EXTRA = "training needs", "trl"


def packages() -> dict[str, str]:
    """Return the versions of what trains, as far as it is installed."""
    found = {}
    for name in ("torch", "transformers", "trl", "peft", "accelerate", "datasets"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def trainer_config(kind: Any, trainer: Mapping[str, Any], **own: Any) -> Any:
    """Make TRL's configuration of a recipe's table and what ptxgym decides itself.

    Args:
        kind: `SFTConfig` or `GRPOConfig`.
        trainer: The table.
        own: What is not for the table to say.

    Raises:
        UsageError: if a setting is unknown, or TRL does not accept a value.
    """
    check_trainer(trainer, (field.name for field in dataclasses.fields(kind)), kind.__name__)
    try:
        return kind(report_to=[], **own, **trainer)
    except (TypeError, ValueError) as error:
        raise UsageError(f"[trainer]: {kind.__name__} does not accept these settings: {error}") from error


def load_tokenizer(recipe: TrainRecipe) -> Any:
    """Load the model's tokenizer.

    Raises:
        UsageError: if the recipe names no model, it cannot be loaded, or it has no chat template.
    """
    if not recipe.model:
        raise UsageError(f'recipe {recipe.name} names no model: write model = "…" into it, or --set model=NAME')
    transformers = need("transformers", WHO, EXTRA)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(recipe.model)
    except (OSError, ValueError) as error:
        said = next(iter(str(error).splitlines()), "")
        raise UsageError(
            f"the tokenizer of model {recipe.model!r} cannot be loaded; it must be a folder with a model, or a name "
            f"on the Hugging Face hub ({said})"
        ) from error
    if not tokenizer.chat_template:
        raise UsageError(
            f"the tokenizer of model {recipe.model!r} has no chat template, so no conversation can be written for it; "
            "take a model that was trained for chat, or set one"
        )
    return tokenizer


def adapters(lora: Lora | None) -> Any:
    """Return PEFT's configuration; None where all weights are trained."""
    if lora is None:
        return None
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    return need("peft", WHO, EXTRA).LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
    )


def callback(log: Log) -> Any:
    """Return a callback for the trainer that hands what it logs to a function; only the first process calls it."""
    transformers = need("transformers", WHO, EXTRA)

    class Logging(transformers.TrainerCallback):  # type: ignore[name-defined, misc]  # the library is imported here
        """Hands numbers on."""

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
            """Take what is logged."""
            if state.is_world_process_zero and logs:
                log(state.global_step, numbers(logs))

    return Logging()


def save_whole(trainer: Any, tokenizer: Any, folder: Path) -> Path:
    """Write the model that was trained, adapters merged, so that whatever comes next can load it.

    Returns:
        Its folder; an earlier one is replaced.
    """
    target = folder / MODEL
    if not trainer.accelerator.is_main_process:
        return target
    shutil.rmtree(target, ignore_errors=True)
    model = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(model, "merge_and_unload"):  # PEFT's
        model = model.merge_and_unload()
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target
