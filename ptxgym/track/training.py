"""`ptxgym train`, tracked: what a trainer logs, and what its rollouts attempt."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ptxgym.adapters.rollout import Rollout
from ptxgym.track.lines import Logged, Row
from ptxgym.track.tracker import JsonlTracker, WandbTracker, check_tracker, open_tracker
from ptxgym.track.turns import ATTEMPTS, judged_cells, judged_values
from ptxgym.train.run import FRONT, METRICS

AXIS = "train/global_step"
"""As the trainers of Hugging Face call it."""
ATTEMPT_AXIS = "attempts_trained"
"""How many turns the rollouts have had."""


class TrackedTraining:
    """Has `log` for `logs=[…]` of a training run. The tracker is opened at the first step that is logged.

    Example:
        >>> with TrackedTraining(folder, "wandb", print) as tracked:           # doctest: +SKIP
        ...     sft(recipe, folder, logs=[tracked.log])
    """

    def __init__(self, folder: Path, tracker: str, on_problem: Callable[[str], None]) -> None:
        """Follow the run in `folder`; see `open_tracker`.

        Raises:
            UsageError: if there is no such tracker, or wandb is not installed.
        """
        self._folder = folder
        self._name = check_tracker(tracker)
        self._on_problem = on_problem
        self._tracker: JsonlTracker | None = None
        self._attempts = self._rollouts = 0
        self._texts: set[str] = set()
        self._writes = int(os.environ.get("RANK", "0")) == 0

    @property
    def where(self) -> str:
        """Where wandb's run is to be seen; empty without one."""
        return self._tracker.where if isinstance(self._tracker, WandbTracker) else ""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take what is logged at a step; names without a group stand under `train/`."""
        named = {name if "/" in name else f"train/{name}": value for name, value in values.items()}
        self._opened().log(named, axis=AXIS, step=step)

    def rollout(self, rollout: Rollout) -> None:
        """Take a rollout that is over, in the first process of several; a text that was told stands by its hash."""
        if not self._writes:
            return
        tracker, config = self._opened(), rollout.episode.config
        self._rollouts += 1
        name = f"{config.pinned}/{config.variant}/{self._rollouts}"
        for turn in rollout.episode.turns:
            self._attempts += 1
            cells = judged_cells(name, turn.number, turn)
            if cells["source_sha256"] in self._texts:
                cells["kernel"] = ""
            self._texts.add(str(cells["source_sha256"]))
            values = judged_values(turn.number, turn)
            tracker.log(values, axis=ATTEMPT_AXIS, step=self._attempts, row=Row(table=ATTEMPTS, cells=cells))

    def close(self, *, failed: bool = False) -> None:
        """Tell of the records, and end the sitting."""
        if self._tracker is None:
            return
        try:
            if not failed:
                files = {name: self._folder / name for name in (FRONT, METRICS) if (self._folder / name).is_file()}
                self._tracker.artifact(f"records-{self._folder.name}", "records", files)
        finally:
            self._tracker.close(failed=failed)

    def _opened(self) -> JsonlTracker:
        if self._tracker is None:
            config: dict[str, Any] = json.loads((self._folder / FRONT).read_bytes())
            self._tracker = open_tracker(
                self._name, self._folder, self._folder.name, config, on_problem=self._on_problem
            )
            for line in self._tracker.before:
                if isinstance(line, Logged) and line.row is not None and line.axis == ATTEMPT_AXIS:
                    self._attempts = line.step
                    self._rollouts = int(str(line.row.cells["episode"]).rpartition("/")[2])
                    self._texts.add(str(line.row.cells["source_sha256"]))
        return self._tracker

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the sitting."""
        self.close(failed=kind is not None)
