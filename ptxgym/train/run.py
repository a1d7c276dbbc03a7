"""The folder of a training run.

train.json      method, recipe, data and versions: written once, at the start
metrics.jsonl   a line whenever the trainer logs: step and numbers
checkpoints/    the trainer's, to go on from
model/          at the end: a whole model that can be loaded, adapters merged; of PPO an RLModule
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from ptxgym.errors import ContentError, UsageError
from ptxgym.store.lines import LineWriter, read_lines, to_json, write_whole
from ptxgym.train.recipe import GrpoRecipe, PpoRecipe, SftRecipe, differing
from ptxgym.verdict import Value

FRONT = "train.json"
METRICS = "metrics.jsonl"
CURRICULUM = "curriculum.json"
"""In a checkpoint."""
CHECKPOINTS = "checkpoints"
MODEL = "model"

Log = Callable[[int, Mapping[str, float]], None]
"""Takes what a trainer logs: the step, and numbers by name. Trackers are such functions."""


class Front(Value):
    """What a run is."""

    method: Literal["sft", "grpo", "ppo"]
    recipe: SftRecipe | GrpoRecipe | PpoRecipe
    data_sha256: str | None = None
    """Of the rows that are trained on; None of PPO, which has none, and of GRPO of a version that did not keep it."""
    ptxgym: str
    packages: dict[str, str]
    """Versions of what trains."""


class Metrics(Value):
    """What was logged at a step."""

    step: int
    values: dict[str, float]


class TrainRun:
    """A run that begins, or goes on. In a run of several processes only the first writes."""

    def __init__(self, folder: Path, front: Front, *, resume: bool, beside: Collection[str] = ()) -> None:
        """Begin a run, or open one to go on with.

        Args:
            folder: Of the run.
            front: As it would begin now.
            resume: Whether to go on from the last checkpoint; a run without one begins anew.
            beside: Names of JSON files that a whole checkpoint holds beside the trainer's.

        Raises:
            UsageError: if there is a run and `resume` is not set, or the other way round, or it was another.
            ContentError: if its files were changed.
            InfrastructureError: if it cannot be written.
        """
        self.folder = folder
        self.front = front
        self._writes = int(os.environ.get("RANK", "0")) == 0
        if resume:
            self._check_same()
        elif self._writes:
            if (folder / FRONT).exists():
                raise UsageError(f"{folder} holds a run; go on with it by --resume, or choose another folder")
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / FRONT, json.dumps(json.loads(to_json(front)), indent=2) + "\n")
        self.checkpoint = _last_checkpoint(folder / CHECKPOINTS, beside) if resume else None
        """From which to go on."""

    def metrics(self) -> tuple[Metrics, ...]:
        """Return what was logged so far."""
        return tuple(read_lines(self.folder / METRICS, Metrics))

    def writer(self, logs: tuple[Log, ...]) -> Log:
        """Return a function that writes to `metrics.jsonl`, then calls others; lines behind the checkpoint go.

        Raises:
            InfrastructureError: if the file cannot be written.
        """
        if not self._writes:
            return lambda step, values: None
        start = 0 if self.checkpoint is None else _step(self.checkpoint)
        kept = [line for line in self.metrics() if line.step <= start] if self.checkpoint else []
        write_whole(self.folder / METRICS, "".join(f"{to_json(line)}\n" for line in kept))

        def write(step: int, values: Mapping[str, float]) -> None:
            with LineWriter(self.folder / METRICS) as lines:
                lines.append(Metrics(step=step, values=dict(values)))
            for log in logs:
                log(step, values)

        return write

    def _check_same(self) -> None:
        path = self.folder / FRONT
        if not path.is_file():
            raise UsageError(f"{self.folder} holds no run to go on with: there is no {FRONT}; leave --resume out")
        try:
            before = Front.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise ContentError(f"{path}: {error.errors()[0]['msg']}; it was written by another version") from error
        if before.method != self.front.method:
            raise UsageError(f"{self.folder} is a run of {before.method}, not {self.front.method}")
        if keys := differing(before.recipe, self.front.recipe):
            raise UsageError(
                f"the run in {self.folder} has another {', '.join(keys)}; a run goes on with its own recipe"
            )
        if before.data_sha256 not in (self.front.data_sha256, None):
            raise UsageError(f"the rows are not those that the run in {self.folder} began with; put them back")


def numbers(logged: Mapping[str, Any]) -> dict[str, float]:
    """Return what of a trainer's log is a number."""
    return {
        name: float(value)
        for name, value in logged.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _last_checkpoint(folder: Path, beside: Collection[str]) -> Path | None:
    """Return the last checkpoint that is whole.

    The trainer writes its state last, which may be torn by a kill; what callbacks put beside it comes after, or never.
    """
    found = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    names = ("trainer_state.json", *beside)
    return max((path for path in found if all(_whole(path / name) for name in names)), key=_step, default=None)


def _whole(state: Path) -> bool:
    try:
        json.loads(state.read_bytes())
    except (OSError, ValueError):
        return False
    return True


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])
