"""What has been evaluated: a line for every setting, the first time that it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

from ptxgym.knobs.env import Action, KnobEnv, Numbers
from ptxgym.knobs.template import Choice
from ptxgym.store.lines import LineWriter, read_lines
from ptxgym.verdict import Value, Verdict


class Evaluated(Value):
    """A setting, and what came of it."""

    setting: dict[str, Choice]
    score: float
    status: str
    code: str
    speedup: float | None = None
    """Where it was timed."""
    turn: int
    """How many turns its runner had taken then, this one included."""


class Journal:
    """A file that the environments of one process share."""

    def __init__(self, path: Path) -> None:
        """Open a file, or go on with it.

        Raises:
            InfrastructureError: if it cannot be written.
            ContentError: if it holds something else.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        before = list(read_lines(path, Evaluated)) if path.exists() else []
        self._known = {key(line.setting) for line in before}
        self._turns = before[-1].turn if before else 0
        self._writer = LineWriter(path)

    def note(self, setting: Mapping[str, Choice], verdict: Verdict) -> None:
        """Write a line, unless the setting was there before."""
        self._turns += 1
        if (mine := key(setting)) in self._known:
            return
        timing = verdict.measured.timing
        self._writer.append(
            Evaluated(
                setting=dict(setting),
                score=verdict.score,
                status=verdict.status,
                code=verdict.code,
                speedup=None if timing is None else timing.speedup,
                turn=self._turns,
            )
        )
        self._known.add(mine)


class Journalled(gym.Wrapper[Numbers, Action, Numbers, Action]):
    """Notes every turn that was judged."""

    def __init__(self, env: KnobEnv, journal: Journal) -> None:
        """Wrap an environment."""
        super().__init__(env)
        self._journal = journal

    def step(self, action: Action) -> Any:
        """Take a turn; see `KnobEnv.step`."""
        stepped = super().step(action)
        info = stepped[4]
        if info["reward_valid"]:
            self._journal.note(info["setting"], info["verdict"])
        return stepped


_OPEN: dict[Path, Journal] = {}


def journalled(env: KnobEnv, path: Path) -> Journalled:
    """Return an environment that notes what it evaluates in a file; those of one process share it."""
    if path not in _OPEN or not path.exists():
        _OPEN[path] = Journal(path)
    return Journalled(env, _OPEN[path])


def read_journals(folder: Path) -> list[Evaluated]:
    """Return what all files of a folder hold, each setting once, in the order of turns."""
    found: dict[str, Evaluated] = {}
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in read_lines(path, Evaluated)]
    for line in sorted(lines, key=lambda line: line.turn):
        found.setdefault(key(line.setting), line)
    return list(found.values())


def key(setting: Mapping[str, Choice]) -> str:
    """Return what settings that are alike have in common."""
    return json.dumps(setting, sort_keys=True)
