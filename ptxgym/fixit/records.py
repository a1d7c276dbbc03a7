"""The lines that Fixit writes, from the failed kernel to the row of a training set."""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

from pydantic import Field

from ptxgym.store.records import SCHEMA, Message, Usage
from ptxgym.variants import Split
from ptxgym.verdict import Status, Value, Verdict

Kind = Literal["compile", "host", "fault", "hang", "hazard", "numerical", "no_target"]
"""What was wrong with a kernel: it did not compile; its host code was refused or could not launch; it faulted; it never
ended; it ran into a hazard; its numbers are wrong; it is right, but not by target instructions."""
KINDS: tuple[Kind, ...] = get_args(Kind)
_KIND_OF: dict[Status, Kind] = {
    Status.COMPILE_ERROR: "compile",
    Status.PLAN_ERROR: "host",
    Status.LAUNCH_ERROR: "host",
    Status.RUNTIME_FAULT: "fault",
    Status.HANG: "hang",
    Status.BUDGET: "hang",
    Status.HAZARD: "hazard",
    Status.WRONG_OUTPUT: "numerical",
}


def kind_of(verdict: Verdict) -> Kind | None:
    """Return what is wrong with a kernel.

    Returns:
        None where there is nothing to repair: it meets the task, no kernel was found, it tried to cheat, or the machine
        or the emulator could not judge it.
    """
    if verdict.status is Status.OK:
        return None if passes(verdict) else "no_target"
    return _KIND_OF.get(verdict.status)


def passes(verdict: Verdict) -> bool:
    """Return whether a kernel is right, and by target instructions: what a repair must be."""
    return verdict.status is Status.OK and verdict.evidence is not None and verdict.evidence.target_ok


class FailedKernel(Value):
    """A kernel that failed in a run, with what its author was told."""

    schema_version: int = SCHEMA
    id: str
    """Of what it is, not of where it lay: 16 hex digits."""
    env: str
    """Pinned id."""
    task: str
    variant: str
    arch: str
    split: Split
    """Of the variant."""
    kind: Kind
    code: str
    turn: int = Field(ge=1)
    source: str
    feedback: str
    conditions: str
    """Under which it failed; a repair is judged under others."""
    episode: str
    run: str
    """SHA-256 of the run's front matter."""

    @property
    def stratum(self) -> tuple[str, str, Kind, int]:
        """Environment, variant, kind and turn."""
        return self.env, self.variant, self.kind, self.turn


def failure_id(env: str, variant: str, source: str, feedback: str) -> str:
    """Return the id of a failed kernel: the same on any machine."""
    return digest("\0".join((env, variant, source, feedback)))[:16]


RepairStatus = Literal["repaired", "failed", "passes_already", "refused"]
"""`repaired`; `failed` in all attempts; the kernel `passes_already` under other conditions, so that there is nothing to
repair; the teacher `refused`."""


class Repair(Value):
    """What became of a failed kernel in a teacher's hands."""

    schema_version: int = SCHEMA
    failure: str
    """`FailedKernel.id`."""
    status: RepairStatus
    attempts: int
    source: str = ""
    """The kernel that passed."""
    score: float = 0.0
    conditions: str = ""
    """Under which it passed."""
    last: str = ""
    """Code of the verdict on the last attempt."""
    teacher: str
    model: str = ""
    usage: Usage = Usage()


class Rationale(Value):
    """The way from a failure to its repair, as a teacher wrote it, or why none of its texts can be used."""

    schema_version: int = SCHEMA
    row: str
    """`FailedKernel.id`; for direct rows that of the kernel."""
    direct: bool = False
    text: str = ""
    """Empty where all attempts were rejected."""
    rejected: tuple[str, ...] = ()
    """Why each text that was not kept was not: codes of `ptxgym.fixit.leaks`."""
    teacher: str
    model: str = ""
    usage: Usage = Usage()


class Row(Value):
    """One conversation to train on; only `completion` is to be learnt."""

    id: str
    recipe: str
    """Name of the recipe."""
    prompt: tuple[Message, ...]
    """Task, wrong kernel, feedback; for direct rows the task alone."""
    completion: tuple[Message, ...]
    """One answer: the rationale in `<think>`, then the kernel."""
    env: str
    task: str
    variant: str
    arch: str
    split: str
    kind: str
    """`direct` for direct rows."""
    code: str
    turn: int
    score: float
    tokens: int
    """Of the whole conversation, estimated."""
    source_run: str


def digest(text: str) -> str:
    """Return the hex SHA-256 of a text; lone surrogates are allowed."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
