"""`ptxgym run`: one agent plays one episode, with its progress on the terminal and its records in a folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path

from pydantic import JsonValue
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from ptxgym.agent import Answered, Event, Judged, Started, Trouble
from ptxgym.agent import Text as Piece
from ptxgym.bench.recipe import AgentSpec, Arm, EnvSpec, Recipe
from ptxgym.bench.runner import Watcher
from ptxgym.bench.session import Sweep
from ptxgym.bench.sweep import Planned
from ptxgym.cli.console import Exit, out, plain, score_bar, style_of
from ptxgym.cli.tracking import JSONL, show_where, told
from ptxgym.device.cuda.model import Tier
from ptxgym.envs import EnvConfig
from ptxgym.errors import UsageError
from ptxgym.knowledge import ALL, PARTS
from ptxgym.store.reader import read_run
from ptxgym.store.records import EpisodeRecord, TurnRecord, Usage
from ptxgym.track.runs import TrackedRun, Watchers

_STATUS = {"done": Exit.OK, "refused": Exit.FAILED, "infra": Exit.INFRASTRUCTURE}


def run_one(
    config: EnvConfig,
    agent: str,
    settings: Mapping[str, JsonValue],
    *,
    seed: int,
    device: str,
    tier: Tier,
    folder: Path | None,
    resume: bool = False,
    track: str = JSONL,
) -> Exit:
    """Play one episode, print it and store it.

    Args:
        config: The environment, with variant, turns, stop rule and knowledge as wanted.
        agent: A folder of `agents/`.
        settings: Of the agent, instead of those in its file.
        seed: Of the agent's sampling, where it sends one.
        device: `auto`, `emulator` or `cuda`.
        tier: How a GPU measures.
        folder: For the records; by default a new one in `runs/`.
        resume: Whether the run in `folder` goes on from its last turn, after whatever ended it.
        track: `jsonl`, or `wandb` as well.

    Raises:
        UnknownNameError: if there is no such agent.
        UsageError: if a setting is not acceptable, the agent is set up wrongly or has no answer, the folder holds a run
            and `resume` was not asked for, or it holds none that can go on.
        InfrastructureError: if the records cannot be written.
    """
    recipe = Recipe.model_validate(
        {
            "name": f"{config.name}-{agent}",
            "summary": f"{agent} on {config.name}",
            "envs": (EnvSpec(id=config.name, variants=(config.variant,)),),
            "agents": (AgentSpec(use=agent, label=agent, settings=dict(settings)),),
            "arms": (Arm(name=_arm(config.knowledge), knowledge=config.knowledge),),
            "trajectories": 1,
            "turns": config.turns,
            "stop": config.stop,
            "seed": seed,
            "device": device,
            "tier": tier,
        }
    )
    if resume and folder is None:
        raise UsageError("--resume goes on with the run in the folder that --out names; give that, too")
    where = folder or Path("runs") / f"{recipe.name}-{datetime.now():%Y%m%d-%H%M%S}"
    sweep = Sweep(recipe, where, resume=resume, setting="{key}")
    tracked = TrackedRun(where, track, told)
    if not sweep.left():
        out.print(plain(f"{where}: the episode is over; `ptxgym report {where}` shows it"))
        tracked.close()  # what an earlier sitting could not tell
        show_where(tracked.where)
        return Exit.OK
    show = _Show(config)
    out.print(Rule(plain(f"{config.name} · {agent} · {sweep.record.device}"), align="left"))
    show.known(read_run(where).turns)
    with tracked:
        with show.live():
            sweep.play(Watchers(show, tracked))
        show.end(where)
    show_where(tracked.where)
    if show.ended is None or show.ended.status == "infra":
        out.print(plain(f"go on with the same command, --out {where} --resume", "yellow"))
    return _STATUS[show.ended.status] if show.ended is not None else Exit.INFRASTRUCTURE


def _arm(knowledge: tuple[str, ...]) -> str:
    return "none" if not knowledge else ALL if knowledge == PARTS else "+".join(knowledge)


class _Show(Watcher):
    """Tells of an episode as it goes: a moving line on a terminal, lines alone elsewhere."""

    def __init__(self, config: EnvConfig) -> None:
        self._turns = config.turns
        self._terminal = out.is_terminal
        self._doing = "starting"
        self._since = time.monotonic()
        self._characters = 0
        self.ended: EpisodeRecord | None = None
        self._scores: dict[int, float] = {}

    def known(self, turns: Iterable[TurnRecord]) -> None:
        """Take the turns that are on record from before."""
        self._scores |= {turn.turn: turn.score for turn in turns}
        if self._scores:
            out.print(plain(f"{len(self._scores)} of {self._turns} turns are on record", "dim"))

    def live(self) -> AbstractContextManager[object]:
        """Show the moving line as long as the context lasts."""
        return (
            Live(self, console=out, refresh_per_second=4, transient=True)
            if self._terminal
            else contextlib.nullcontext()
        )

    def __rich__(self) -> Text:
        """Draw the moving line."""
        size = f" · {self._characters:,} characters" if self._characters else ""
        return plain(f"{self._doing}{size} · {time.monotonic() - self._since:.0f} s", "dim")

    def on_event(self, planned: Planned, event: Event) -> None:
        """Show what happened within the episode; turns that are played again after a failure are known already."""
        turn = event.record.turn if isinstance(event, Judged) else event.turn
        if turn in self._scores:
            return
        if isinstance(event, Started):
            self._do(event.turn, "the model answers")
        elif isinstance(event, Piece):
            self._characters += len(event.text)
        elif isinstance(event, Trouble):
            self._characters = 0
            out.print(plain(f"turn {event.turn} of {self._turns}: {_line(event.message)}", "yellow"))
        elif isinstance(event, Answered):
            self._do(event.turn, f"an answer of {len(event.reply.text):,} characters is judged")
        else:
            self._scores[turn] = event.record.score
            _print_turn(event.record, self._turns)

    def on_retry(self, planned: Planned, record: EpisodeRecord) -> None:
        """Show that the episode goes on after a failure of the machine."""
        out.print(plain(f"the machine failed, and the episode goes on: {_line(record.problem)}", "yellow"))

    def on_end(self, planned: Planned, record: EpisodeRecord) -> None:
        """Remember how the episode ended."""
        self.ended = record

    def end(self, folder: Path) -> None:
        """Print the sum of it all."""
        out.print(Rule())
        record = self.ended
        if record is not None:
            if record.problem:
                out.print(plain(f"{record.status}: {_line(record.problem)}", "red"))
            if record.ended:
                out.print(plain(f"ended after turn {record.turns} of {self._turns}: {_line(record.ended)}", "yellow"))
            best = f"; the best is {record.best_score:.2f}, of turn {record.best_turn}" if record.best_turn else ""
            out.print(plain(f"scores {' → '.join(f'{score:.2f}' for score in self._scores.values()) or 'none'}{best}"))
            if record.usage != Usage(cost_usd=0.0):
                out.print(plain(usage_line(record.usage)))
        out.print(plain(f"records in {folder}"))

    def _do(self, turn: int, what: str) -> None:
        self._doing, self._since, self._characters = f"turn {turn} of {self._turns}: {what}", time.monotonic(), 0
        if not self._terminal:
            out.print(plain(f"{self._doing} …", "dim"))


def usage_line(usage: Usage) -> str:
    """Return what an episode used, in words."""
    if not usage.told:
        return "tokens and cost unknown: the endpoint tells none"
    cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
    thought = f" ({usage.reasoning_tokens:,} of reasoning)" if usage.reasoning_tokens else ""
    cost = "cost unknown: the agent has no prices" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    return f"{usage.prompt_tokens:,} tokens read{cached}, {usage.completion_tokens:,} written{thought}; {cost}"


def _print_turn(record: TurnRecord, turns: int) -> None:
    verdict = record.verdict
    remarks = [
        *(["refused"] if record.refused else []),
        *([record.finish_reason] if record.finish_reason not in ("", "stop") else []),
        *([f"{record.attempts} attempts"] if record.attempts > 1 else []),
        f"model {record.model_s:.0f} s",
        f"judge {record.evaluate_s:.0f} s",
    ]
    out.print(
        Text.assemble(
            (f"turn {record.turn} of {turns}: {verdict.status} · {verdict.code}  ", f"bold {style_of(verdict)}"),
            score_bar(record.score),
            f"  reward {record.reward:+.2f}  ",
            (" · ".join(remarks), "dim"),
        )
    )
    if verdict.message:
        out.print(plain(f"  {_line(verdict.message)}"))


def _line(text: str, most: int = 300) -> str:
    """Return a text as one line, cut off where it is long."""
    line = "".join(letter if letter.isprintable() else " " for letter in " ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"
