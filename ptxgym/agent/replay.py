"""An agent that repeats recorded answers: of a run, or of a folder of files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ptxgym.agent.config import ReplayConfig
from ptxgym.agent.prompting import Prompting, fenced
from ptxgym.agent.protocol import Identity, MissingSetting, NoMoreAnswers, Reply, TurnContext
from ptxgym.errors import UsageError
from ptxgym.store.lines import read_lines
from ptxgym.store.records import Message, Usage
from ptxgym.task import Task

TURNS = "turns.jsonl"


class _Recorded(BaseModel):
    """Of a line of `turns.jsonl`, what is repeated."""

    episode: str
    turn: int
    response: str
    reasoning: str = ""
    finish_reason: str = ""
    refused: bool = False
    model: str = ""
    solution: str = ""


class ReplayAgent:
    """Answers as it was answered before, at no cost."""

    prompting = Prompting()

    def __init__(self, config: ReplayConfig) -> None:
        """Take over a configuration.

        Raises:
            UsageError: if its path is missing or no folder of answers.
        """
        if config.path is None:
            where = "to a run's folder or to a folder of answers (*.md, *.cu)"
            raise MissingSetting(config.name, "path", where, "runs/first")
        self.config = config
        self.name = config.name
        self._path = config.path.expanduser()
        if not self._path.is_dir():
            raise UsageError(f"agent {self.name}: path: {self._path} is no folder")
        self._run = (self._path / TURNS).is_file()
        self._files = () if self._run else tuple(_files(self._path))
        if not self._run and not self._files:
            raise UsageError(f"agent {self.name}: path: {self._path} holds neither {TURNS} nor *.md or *.cu files")

    async def reply(self, messages: Sequence[Message], turn: TurnContext, on_text: Callable[[str], None]) -> Reply:
        """Repeat the answer of the turn with the same number.

        Raises:
            NoMoreAnswers: if fewer turns were recorded.
            UsageError: if none was recorded, or answers of several episodes.
        """
        if not self._run:
            return self._file(turn.number)
        played = self._episode(turn.identity)
        if turn.number not in played:
            raise NoMoreAnswers(f"{self._path} has no answer for turn {turn.number}")
        found = played[turn.number]
        return Reply(
            found.response,
            reasoning=found.reasoning,
            finish_reason=found.finish_reason,
            model=found.model,
            refused=found.refused,
            usage=Usage(cost_usd=0.0),
        )

    def check(self, identity: Identity, task: Task, arch: str) -> None:
        """Accept an episode.

        Raises:
            UsageError: if no answer to its first turn was recorded, or several.
        """
        if self._run:
            self._episode(identity)

    def describe(self) -> dict[str, Any]:
        """Return the settings."""
        return self.config.model_dump(mode="json")

    def _file(self, number: int) -> Reply:
        if number > len(self._files):
            raise NoMoreAnswers(f"{self._path} has no answer for turn {number}: it holds {len(self._files)}")
        file = self._files[number - 1]
        text = file.read_text(encoding="utf-8", errors="replace")
        return Reply(fenced(text) + "\n" if file.suffix == ".cu" else text, model=self.name, usage=Usage(cost_usd=0.0))

    def _episode(self, wanted: Identity) -> dict[int, _Recorded]:
        """Return the turns of the one episode like `wanted`, by number."""
        alike = [found for found in self._lines() if _same(found.episode, wanted)]
        alike = [found for found in alike if _arm(found.episode) == wanted.arm] or alike
        if len(episodes := sorted({found.episode for found in alike})) > 1:  # answers of two must not become one
            raise UsageError(
                f"agent {self.name}: {self._path} has several episodes like {wanted.id}: {', '.join(episodes)}; repeat "
                "a run of one agent, or put the answers of one episode into a folder of files"
            )
        played = {found.turn: found for found in alike}
        if 1 not in played:
            raise UsageError(f"agent {self.name}: {self._path} has no turn 1 of an episode like {wanted.id}")
        if name := played[1].solution:
            raise UsageError(
                f"agent {self.name}: the answers of {episodes[0]} are the proven solution {name}, whose text is on no "
                "record; let that agent play again"
            )
        return played

    def _lines(self) -> Iterator[_Recorded]:
        return read_lines(self._path / TURNS, _Recorded)


def _same(episode: str, wanted: Identity) -> bool:
    """Whether an episode is the wanted trajectory of the same environment and variant, whoever played it."""
    return episode.startswith(f"{wanted.env}/{wanted.variant}/") and episode.endswith(f"/{wanted.trajectory}")


def _arm(episode: str) -> str:
    return episode.split("/")[-2]


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.iterdir() if path.suffix in (".md", ".cu") and path.is_file())
