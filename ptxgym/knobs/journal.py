"""What has been evaluated: a line for every setting, the first time that it was."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

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
    turn: int = 0
    """How many turns its runner had taken then, this one included."""


class Notebook(Protocol):
    """Takes what has been evaluated."""

    def note(self, setting: Mapping[str, Choice], verdict: Verdict) -> None:
        """Take a turn that was judged."""

    def close(self) -> None:
        """Let go of it, once for each environment that notes."""


class Journal:
    """A file that the environments of one process share; the last one that lets go of it closes it."""

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
        self._users = 1

    def note(self, setting: Mapping[str, Choice], verdict: Verdict) -> None:
        """Write a line, unless the setting was there before."""
        self.take(evaluated(setting, verdict))

    def take(self, line: Evaluated) -> None:
        """Write a line, its turn being the next, unless the setting was there before."""
        self._turns += 1
        if (mine := key(line.setting)) in self._known:
            return
        self._writer.append(line.model_copy(update={"turn": self._turns}))
        self._known.add(mine)

    def shared(self) -> Journal | None:
        """Return it for one more user; None if it is closed, or its file is no longer the one at its path."""
        if not self._users or not self._writer.in_place():
            return None
        self._users += 1
        return self

    def close(self) -> None:
        """Let go of it."""
        with _GUARD:
            self._users -= 1
            if not self._users:
                self._writer.close()


def evaluated(setting: Mapping[str, Choice], verdict: Verdict) -> Evaluated:
    """Return what a journal keeps of a turn."""
    timing = verdict.measured.timing
    return Evaluated(
        setting=dict(setting),
        score=verdict.score,
        status=verdict.status,
        code=verdict.code,
        speedup=None if timing is None else timing.speedup,
    )


class Journalled(gym.Wrapper[Numbers, Action, Numbers, Action]):
    """Notes every turn that was judged."""

    def __init__(self, env: KnobEnv, notebook: Notebook) -> None:
        """Wrap an environment; with it, the notebook is let go of."""
        super().__init__(env)
        self._notebook: Notebook | None = notebook

    def step(self, action: Action) -> Any:
        """Take a turn; see `KnobEnv.step`."""
        stepped = super().step(action)
        info = stepped[4]
        if info["reward_valid"] and self._notebook is not None:
            self._notebook.note(info["setting"], info["verdict"])
        return stepped

    def close(self) -> None:
        """Close the environment; calling it again does nothing."""
        notebook, self._notebook = self._notebook, None
        super().close()
        if notebook is not None:
            notebook.close()


_OPEN: WeakValueDictionary[Path, Journal] = WeakValueDictionary()
_GUARD = threading.Lock()


def journalled(env: KnobEnv, path: Path) -> Journalled:
    """Return an environment that notes what it evaluates in a file; those of one process share it."""
    with _GUARD:
        known = _OPEN.get(path)
        journal = (known.shared() if known is not None else None) or Journal(path)
        _OPEN[path] = journal
    return Journalled(env, journal)


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
