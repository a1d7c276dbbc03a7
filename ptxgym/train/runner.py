"""What an env runner of RLlib steps: a `KnobEnv` that tries again where the machine failed, and never pays for that.

RLlib learns from every step that an environment returns, a truncated one with its reward of 0 included. So a turn that
the machine failed at is raised, not returned: RLlib then drops the unfinished episode and makes the environment anew
(`restart_failed_sub_environments`). RLlib would do so for ever; here the run ends when nothing comes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

from ptxgym.errors import InfrastructureError
from ptxgym.evaluator import Evaluator
from ptxgym.knobs.env import Action, KnobEnv, Numbers
from ptxgym.knobs.journal import Journalled, Notebook, journalled
from ptxgym.knobs.template import load_template
from ptxgym.train.recorder import SentNotes

PAUSES_S = (1.0, 10.0, 60.0)
"""Before each further try at a turn that the machine failed at."""
MOST_DROPPED = 3
"""Episodes that an env runner may drop in a row."""

LENT: dict[str, Evaluator] = {}
"""Evaluators of a caller's, for the env runner of this process, by sitting."""
_DROPS: dict[str, Drops] = {}
"""What this process has dropped, by sitting."""


class Drops:
    """Counts the episodes that were dropped in a row, and ends a run in which no turn is judged any more."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._last: Exception | None = None

    def note(self, error: Exception | None) -> None:
        """Take how a step went; None if it went well."""
        self._last = error
        self._in_a_row = 0 if error is None else self._in_a_row + 1

    def check(self) -> None:
        """Raise unless another episode may be begun; what is not the machine's fault is not tried again.

        Raises:
            InfrastructureError: if the machine failed at too many episodes in a row.
            Exception: what was raised at the last step, if it was another one.
        """
        if self._last is None:
            return
        if not isinstance(self._last, InfrastructureError):
            raise self._last
        if self._in_a_row >= MOST_DROPPED:
            raise InfrastructureError(
                f"the machine failed at {self._in_a_row} episodes in a row, which were dropped; --resume goes on when "
                f"it is mended ({self._last})"
            ) from self._last


class Dropping(gym.Wrapper[Numbers, Action, Numbers, Action]):
    """Raises where the machine failed at a turn."""

    def __init__(self, env: Journalled, drops: Drops) -> None:
        """Wrap an environment."""
        super().__init__(env)
        self._drops = drops

    def step(self, action: Action) -> Any:
        """Take a turn; see `KnobEnv.step`.

        Raises:
            InfrastructureError: if the machine failed.
        """
        try:
            stepped = super().step(action)
            if not stepped[4]["reward_valid"]:
                raise InfrastructureError(stepped[4]["error"])
        except Exception as error:
            self._drops.note(error)
            raise
        self._drops.note(None)
        return stepped


def make_env(settings: Mapping[str, Any]) -> Dropping:
    """Return the environment that an env runner steps; RLlib adds the runner's number to the settings.

    Raises:
        InfrastructureError: if the machine failed too often in this process.
    """
    drops = _DROPS.setdefault(settings["sitting"], Drops())
    drops.check()
    env = KnobEnv(
        load_template(settings["template"]).keep(settings["keep"]),
        turns=settings["turns"],
        reward=settings["reward"],
        ladder=settings["ladder"],
        device=settings["device"],
        tier=settings["tier"],
        evaluator=LENT.get(settings["sitting"]),
        pauses_s=settings["pauses_s"],
    )
    runner = int(getattr(settings, "worker_index", 0))
    if settings["recorder"]:
        notes: Notebook = SentNotes(settings["recorder"], runner)
        return Dropping(Journalled(env, notes), drops)
    return Dropping(journalled(env, Path(settings["journals"]) / f"runner-{runner}.jsonl"), drops)


def forget(sitting: str) -> None:
    """Let go of what this process keeps for a sitting that is over."""
    LENT.pop(sitting, None)
    _DROPS.pop(sitting, None)
