"""The file that a tracker writes, `track/events.jsonl`: one event a line, oldest first.

A sitting begins with `opened` and ends with `ended`; one that was killed has no end. Between them are numbers, rows of
tables and artefacts. Whoever forwards a run reads this file alone, so that what it has not sent yet can be sent later.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, RootModel

from ptxgym.verdict import Value

FOLDER = "track"
"""Of the tracker, in the folder of a run."""
EVENTS = "events.jsonl"

Cell = str | int | float | bool | None


class Row(Value):
    """A row of a table."""

    table: str
    cells: dict[str, Cell]


class Opened(Value):
    """A sitting begins."""

    kind: Literal["opened"] = "opened"
    at: str
    """UTC, ISO 8601."""
    name: str
    """Of the run."""
    config: dict[str, JsonValue]
    """What is run."""
    system: dict[str, str]
    """On what: versions, GPU, driver, toolkit, isolation."""


class Logged(Value):
    """Numbers at a step of an axis, and what belongs to them in a table."""

    kind: Literal["logged"] = "logged"
    axis: str
    """Such as `turns`: how many the run has had. Axes have nothing to do with each other."""
    step: int
    values: dict[str, float]
    """By name; `reward/speed` is drawn with its group `reward`."""
    row: Row | None = None


class Artifact(Value):
    """Files that belong together."""

    kind: Literal["artifact"] = "artifact"
    name: str
    type: str
    """Such as `records`."""
    files: dict[str, str]
    """Name in the artefact → path in the folder of the run."""
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class Ended(Value):
    """A sitting ends."""

    kind: Literal["ended"] = "ended"
    at: str
    failed: bool
    """Whether by an exception."""


Event = Opened | Logged | Artifact | Ended


class Line(RootModel[Annotated[Event, Field(discriminator="kind")]]):
    """Any line of the file."""
