"""An agent that repeats recorded answers: of a run, or of a folder of files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ptxgym.agent.config import ReplayConfig
from ptxgym.agent.prompting import Prompting, fenced
from ptxgym.agent.protocol import Identity, Reply, TurnContext
from ptxgym.errors import UsageError
from ptxgym.store.records import Message, Usage

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


class ReplayAgent:
    """Answers as it was answered before, at no cost."""

    prompting = Prompting()

    def __init__(self, config: ReplayConfig) -> None:
        """Take over a configuration.

        Raises:
            UsageError: if its path is missing or no folder of answers.
        """
        if config.path is None:
            raise UsageError(
                f"agent {config.name}: set `path` to a run's folder or to a folder of answers (*.md, *.cu), "
                "such as with --set path=runs/first"
            )
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
            UsageError: if none was recorded.
        """
        return self._recorded(turn) if self._run else self._file(turn)

    def describe(self) -> dict[str, Any]:
        """Return the settings."""
        return self.config.model_dump(mode="json")

    def _file(self, turn: TurnContext) -> Reply:
        if turn.number > len(self._files):
            raise UsageError(
                f"agent {self.name}: {self._path} holds {len(self._files)} answers, none for turn {turn.number}; "
                f"play {len(self._files)} turns"
            )
        file = self._files[turn.number - 1]
        text = file.read_text(encoding="utf-8", errors="replace")
        return Reply(fenced(text) + "\n" if file.suffix == ".cu" else text, model=self.name, usage=Usage(cost_usd=0.0))

    def _recorded(self, turn: TurnContext) -> Reply:
        wanted = turn.identity
        alike = [found for found in self._lines() if _same(found.episode, wanted)]
        alike = [found for found in alike if _arm(found.episode) == wanted.arm] or alike
        if len(episodes := sorted({found.episode for found in alike})) > 1:  # answers of two must not become one
            raise UsageError(
                f"agent {self.name}: {self._path} has several episodes like {wanted.id}: {', '.join(episodes)}; repeat "
                "a run of one agent, or put the answers of one episode into a folder of files"
            )
        for found in alike:
            if found.turn == turn.number:
                return Reply(
                    found.response,
                    reasoning=found.reasoning,
                    finish_reason=found.finish_reason,
                    model=found.model,
                    refused=found.refused,
                    usage=Usage(cost_usd=0.0),
                )
        raise UsageError(f"agent {self.name}: {self._path} has no turn {turn.number} of an episode like {wanted.id}")

    def _lines(self) -> Iterator[_Recorded]:
        for line in (self._path / TURNS).read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break  # torn when its run was killed
            yield _Recorded.model_validate_json(line)


def _same(episode: str, wanted: Identity) -> bool:
    """Whether an episode is the wanted trajectory of the same environment and variant, whoever played it."""
    return episode.startswith(f"{wanted.env}/{wanted.variant}/") and episode.endswith(f"/{wanted.trajectory}")


def _arm(episode: str) -> str:
    return episode.split("/")[-2]


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.iterdir() if path.suffix in (".md", ".cu") and path.is_file())
