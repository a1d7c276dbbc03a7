"""`ptxgym train`, tracked: what a trainer logs, and the attempts of its rollouts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ptxgym.track.tracker import JsonlTracker, WandbTracker, check_tracker, open_tracker
from ptxgym.train.run import FRONT, METRICS

AXIS = "train/global_step"
"""As the trainers of Hugging Face call it."""


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

    @property
    def where(self) -> str:
        """Where wandb's run is to be seen; empty without one."""
        return self._tracker.where if isinstance(self._tracker, WandbTracker) else ""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take what is logged at a step; names without a group stand under `train/`."""
        named = {name if "/" in name else f"train/{name}": value for name, value in values.items()}
        self._opened().log(named, axis=AXIS, step=step)

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
        return self._tracker

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the sitting."""
        self.close(failed=kind is not None)
