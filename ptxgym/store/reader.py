"""A run, read from its folder while it goes on or afterwards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ptxgym.errors import ContentError, UsageError
from ptxgym.store.lines import read_lines
from ptxgym.store.records import SCHEMA, EpisodeRecord, Remeasurement, RunRecord, TurnRecord

RUN = "run.json"
EPISODES = "episodes.jsonl"
TURNS = "turns.jsonl"
REMEASURED = "remeasured.jsonl"


@dataclass(frozen=True)
class StoredRun:
    """All that a run has on record, in the order in which it was written."""

    folder: Path
    record: RunRecord
    episodes: tuple[EpisodeRecord, ...]
    """The last word on each: an episode that the machine failed and that was played again is here once."""
    turns: tuple[TurnRecord, ...]
    """Those of episodes that have not ended included."""
    remeasured: tuple[Remeasurement, ...]

    def turns_of(self, episode: str) -> tuple[TurnRecord, ...]:
        """Return the turns of an episode, first to last."""
        return tuple(sorted((turn for turn in self.turns if turn.episode == episode), key=lambda turn: turn.turn))


def read_run(folder: str | Path) -> StoredRun:
    """Read a run.

    Raises:
        UsageError: if the folder holds no run, or one of a later version.
        ContentError: if a line is not what it should be.
    """
    folder = Path(folder)
    episodes = {episode.id: episode for episode in read_lines(folder / EPISODES, EpisodeRecord)}
    turns = {(turn.episode, turn.turn): turn for turn in read_lines(folder / TURNS, TurnRecord)}
    again = {(found.episode, found.epoch): found for found in read_lines(folder / REMEASURED, Remeasurement)}
    return StoredRun(
        folder, read_record(folder), tuple(episodes.values()), tuple(turns.values()), tuple(again.values())
    )


def read_record(folder: Path) -> RunRecord:
    """Read the front matter of a run.

    Raises:
        UsageError: if the folder holds no run, or one of a later version.
        ContentError: if the file is not what it should be.
    """
    path = folder / RUN
    if not path.is_file():
        raise UsageError(f"{folder} holds no run: there is no {RUN}; a run is what `ptxgym bench` writes")
    try:
        data = json.loads(path.read_bytes())
        version = data.get("schema_version", 0)
        if version > SCHEMA:
            raise UsageError(f"{path} is of schema {version}, this version reads up to {SCHEMA}; update ptxgym")
        return RunRecord.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ContentError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (ValueError, AttributeError) as error:
        if isinstance(error, UsageError):
            raise
        raise ContentError(f"{path}: {error}; the file was changed after it was written") from error
