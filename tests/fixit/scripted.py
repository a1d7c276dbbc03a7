"""Scripted teachers, and runs whose kernels fail: mutants of teaching kernels for variants to train on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ptxgym.agent import Identity, Prompting, Reply, TurnContext, run_episode
from ptxgym.agent.prompting import fenced
from ptxgym.envs import load_env
from ptxgym.episode import Episode
from ptxgym.evaluator import Evaluator
from ptxgym.fixit.leaks import new_lines
from ptxgym.fixit.mutate import sampled
from ptxgym.fixit.records import FailedKernel
from ptxgym.knowledge import load_pack, template_text
from ptxgym.store.records import Message
from ptxgym.store.writer import RunWriter
from ptxgym.variants import load_variant
from tests.store.samples import front

KERNELS = Path(__file__).parent / "kernels"
ENVS = {"h100": "PTX-Gemm-H100", "b200": "PTX-Gemm-B200"}
CANARY = "0f1e2d3c-canary"


def kernel(arch: str) -> str:
    """A right kernel for gemm's variants `bias` and `k64-bias`, of template functions of the knowledge pack."""
    return template_text(load_pack(arch)) + (KERNELS / f"{arch}.cu").read_text(encoding="utf-8")


def first_line(arch: str) -> int:
    """The first line behind the template functions."""
    return template_text(load_pack(arch)).count("\n") + 1


def naive(variant: str) -> str:
    """Right, but on CUDA cores."""
    task = load_variant("gemm", variant)
    return task.source(task.solutions["h100"][0])


@dataclass
class Scripted:
    """An agent that says what a function of the conversation and the turn says."""

    say: Callable[[Sequence[Message], TurnContext], str | Reply]
    name: str = "scripted"
    prompting: Prompting = field(default_factory=Prompting)
    asked: list[tuple[str, int]] = field(default_factory=list)
    """Failure and turn of each question."""

    async def reply(self, messages: Sequence[Message], turn: TurnContext, on_text: Callable[[str], None]) -> Reply:
        self.asked.append((turn.identity.arm, turn.number))
        said = self.say(messages, turn)
        return said if isinstance(said, Reply) else Reply(said, model="scripted-1")

    def describe(self) -> dict[str, object]:
        return {"name": self.name}


@dataclass(frozen=True)
class Cell:
    """Mutants of the teaching kernel of an architecture, handed in turn by turn."""

    arch: str
    variant: str
    count: int
    seed: int = 0

    def texts(self) -> tuple[str, ...]:
        return tuple(mutant.text for mutant in sampled(kernel(self.arch), self.count, self.seed, first_line(self.arch)))


def failing_run(folder: Path, cells: Sequence[Cell], evaluator: Evaluator, secret: str) -> None:
    """Write the run of an agent that hands in mutants."""

    async def play(cell: Cell, writer: RunWriter) -> None:
        texts = cell.texts()
        config = load_env(ENVS[cell.arch]).override(variant=cell.variant, turns=len(texts))
        agent = Scripted(lambda messages, turn: fenced(texts[turn.number - 1]))
        identity = Identity(env=config.pinned, agent="scripted", variant=cell.variant, canary=CANARY)
        record, turns = await run_episode(Episode(config, evaluator), agent, identity)
        assert record.status == "done", record.problem
        for turn in turns:
            writer.turn(turn)
        writer.episode(record)

    async def play_all(writer: RunWriter) -> None:
        await asyncio.gather(*(play(cell, writer) for cell in cells))

    with RunWriter.begin(folder, front(canary=CANARY), secret) as writer:
        asyncio.run(play_all(writer))


REPAIRS = ("right", "right", "late", "right", "naive", "never")
"""How the scripted repair teacher behaves, by failure: it mends; mends at the second attempt; hands in a right kernel
without target instructions; hands the failing kernel back."""
EVERY_REPAIR = (*REPAIRS, "cheats", "lucky")
"""And beside these: it hands in a kernel that cheats, or one that fits the draws of the failing run alone."""
CHEAT, LUCKY = "// asks for the time", "// fits these draws"
PATHS = ("good", "good", "good", "names", "quotes", "recites", "good_at_last")
"""How the scripted reasoning teacher behaves."""


def behaviour(failure: str, of: Sequence[str]) -> str:
    return of[int(failure, 16) % len(of)]


def repair_teacher(mined: Sequence[FailedKernel], ways: Sequence[str] = REPAIRS) -> Scripted:
    by_id = {failure.id: failure for failure in mined}

    def say(messages: Sequence[Message], turn: TurnContext) -> str:
        failure = by_id[turn.identity.arm]
        how, right = behaviour(failure.id, ways), kernel(failure.arch)
        if how in ("cheats", "lucky"):
            return fenced(f"{right}{CHEAT if how == 'cheats' else LUCKY}\n")
        if how == "never" or (how == "late" and turn.number == 1):
            return fenced(failure.source)
        return fenced(naive(failure.variant) if how == "naive" else right)

    return Scripted(say, name="repairer")


GOOD = """The verdict says {headline}. Before I touch anything I follow one tile through the kernel. Copies bring both
operands into shared memory and count their bytes at the barrier; the products read them through descriptors; the sums
come back once the products are complete, and a bias is added on the way out. If the grid were wrong, whole tiles would
be missing, and the message would speak of regions that nobody wrote. If a descriptor were wrong, every tile would be
wrong in the same pattern. What is said here points elsewhere. So I look at the place that is named, and ask what must
hold there when the next step begins: who wrote, who waits, and for which phase. One thing does not hold. It has to be
put right there and nowhere else, because everything around it is consistent with the layout that the copies use. """


def path_teacher(mined: Sequence[FailedKernel]) -> Scripted:
    by_id = {failure.id: failure for failure in mined}

    def say(messages: Sequence[Message], turn: TurnContext) -> str:
        failure = by_id[turn.identity.arm]
        how = behaviour(failure.id[::-1], PATHS)
        good = GOOD.format(headline=failure.feedback.splitlines()[0].lower())
        right = kernel(failure.arch)
        if how == "names" or (how == "good_at_last" and turn.number == 1):
            return good + "Then it reads like the corrected kernel that I was given."
        if how == "quotes":
            added = next(new_lines(right, failure.source + failure.feedback), None)
            return f"I need {added} here. {good}" if added else good
        return f"{good}\n{right}" if how == "recites" else good

    return Scripted(say, name="thinker")
