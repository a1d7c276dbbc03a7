"""Playing a sweep: limits, what the machine fails at, and what a second sitting does not repeat."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ptxgym import judging
from ptxgym.agent import Event, Judged, ModelError, Prompting, Reply, TurnContext
from ptxgym.agent.prompting import fenced
from ptxgym.bench import runner
from ptxgym.bench.journal import REPLIES, Journal, RecordedEvaluator, StoredReply
from ptxgym.bench.metrics import trajectories
from ptxgym.bench.recipe import Limits, Recipe
from ptxgym.bench.remeasure import EPOCH, best_turn, remeasure
from ptxgym.bench.runner import Watcher, left, play
from ptxgym.bench.sweep import Planned, plan
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.store.lines import read_lines
from ptxgym.store.reader import StoredRun, read_run
from ptxgym.store.records import EpisodeRecord, Message, Usage
from ptxgym.store.writer import RunWriter
from ptxgym.verdict import Status, Verdict
from tests.bad_kernels import host
from tests.scripted import ScriptedDevice
from tests.store.samples import front, turn, verdict

GOOD = host("")


@dataclass
class Fake:
    """Answers as told, in no time but its own."""

    answer: Callable[[TurnContext], Reply | Exception] = lambda turn: Reply(fenced(GOOD), usage=Usage(cost_usd=0.01))
    name: str = "fake"
    prompting: Prompting = field(default_factory=Prompting)
    asked: list[tuple[str, int]] = field(default_factory=list)
    now: int = 0
    most: int = 0

    async def reply(self, messages: Sequence[Message], turn: TurnContext, on_text: Callable[[str], None]) -> Reply:
        self.asked.append((turn.identity.id, turn.number))
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.02)
        self.now -= 1
        answer = self.answer(turn)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def describe(self) -> dict[str, object]:
        return {"name": self.name}


def episodes(trajectories: int = 3, turns: int = 2) -> tuple[Planned, ...]:
    return plan(
        Recipe(name="r", summary="", envs=("PTX-Gemm-H100",), agents=("fake",), trajectories=trajectories, turns=turns)  # type: ignore[arg-type]
    )


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "INFRA_PAUSE_S", 0.0)
    monkeypatch.setattr("ptxgym.agent.loop.JUDGE_PAUSES_S", (0.0, 0.0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    RunWriter.begin(tmp_path / "run", front(), "s").close()
    return tmp_path / "run"


@dataclass
class Sittings:
    """Plays a folder's run, once or more."""

    folder: Path
    device: ScriptedDevice = field(default_factory=lambda: ScriptedDevice(family="fma"))
    limits: Limits = field(default_factory=lambda: Limits(model_calls=2, infra_retries=2))

    def play(self, agent: Fake, planned: Sequence[Planned], watcher: Watcher | None = None) -> StoredRun:
        with (
            RunWriter(self.folder) as run,
            RecordedEvaluator(self.device, run.stored.turns, secret="s", builds=1, runs=1) as evaluator,
        ):
            play(left(planned, run.stored.episodes), run, evaluator, {"fake": agent}, self.limits, watcher)
        return read_run(self.folder)


@pytest.fixture
def sittings(folder: Path) -> Iterator[Sittings]:
    yield Sittings(folder)


def test_every_episode_is_played_once_within_the_limits(sittings: Sittings) -> None:
    agent, planned = Fake(), episodes(5)
    stored = sittings.play(agent, planned)
    assert Counter(agent.asked) == {(one.id, number): 1 for one in planned for number in (1, 2)}
    assert agent.most == 2
    assert {episode.id for episode in stored.episodes} == {one.id for one in planned}
    assert len(stored.turns) == 10
    assert {(turn.score, turn.usage.cost_usd) for turn in stored.turns} == {(0.2, 0.01)}
    assert stored.episodes[0].usage.cost_usd == pytest.approx(0.02)
    assert len({turn.verdict.provenance.source_sha256 for turn in stored.turns}) == 1
    assert len(sittings.device.calls) == 4  # equal texts are judged once
    assert left(planned, stored.episodes) == ()


def test_nothing_on_record_is_asked_or_judged_again(sittings: Sittings) -> None:
    """What a kill in the middle of an episode leaves: some turns, or answers alone."""
    planned = episodes(2)
    sittings.play(Fake(), planned)
    whole = (sittings.folder / "turns.jsonl").read_text().splitlines(keepends=True)
    (sittings.folder / "episodes.jsonl").write_text("")
    (sittings.folder / "turns.jsonl").write_text("".join(whole[:3]))
    again = Fake(lambda turn: AssertionError("asked again"))
    sittings.device.calls.clear()
    stored = sittings.play(again, planned)
    assert again.asked == []
    assert sittings.device.calls == []
    assert len(stored.turns) == 4
    assert (sittings.folder / "turns.jsonl").read_text().splitlines(keepends=True)[:3] == whole[:3]
    assert {episode.status for episode in stored.episodes} == {"done"}
    assert len(list(read_lines(sittings.folder / REPLIES, StoredReply))) == 4


def test_verdicts_of_this_sitting_outlive_the_memory_of_evaluators(
    sittings: Sittings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the machine fails late, an episode is played again with the verdicts on record, however many came since."""
    monkeypatch.setattr("ptxgym.memory.VERDICTS_KEPT", 1)
    asked = Counter[int]()

    def answer(turn: TurnContext) -> Reply | Exception:
        asked[turn.number] += 1
        if turn.number == 3 and asked[3] == 1:
            return ModelError("down")
        return Reply(fenced(f"{GOOD}// {turn.number}\n"))

    agent = Fake(answer)
    stored = sittings.play(agent, episodes(1, turns=3))
    assert asked == {1: 1, 2: 1, 3: 2}
    assert len({turn.source for turn in stored.turns}) == 3
    assert len(sittings.device.calls) == 3 * 4  # as one text alone


def test_an_answer_that_was_lost_is_asked_for_again_and_no_other(sittings: Sittings) -> None:
    planned = episodes(1, turns=3)
    sittings.play(Fake(), planned)
    for name, kept in (("episodes.jsonl", 0), ("turns.jsonl", 1), (REPLIES, 2)):
        lines = (sittings.folder / name).read_text().splitlines(keepends=True)
        (sittings.folder / name).write_text("".join(lines[:kept]) + "{torn"[: 5 * (kept > 0)])
    agent = Fake()
    stored = sittings.play(agent, planned)
    assert [number for _, number in agent.asked] == [3]
    assert [turn.turn for turn in stored.turns] == [1, 2, 3]


class Hanging(RecordedEvaluator):
    """Passes its gates as a pipeline does, and never comes back with the first text."""

    release = threading.Event()
    first = threading.Lock()

    def evaluate(self, text: str, *arguments: object, **more: object) -> Verdict:  # type: ignore[override]
        with self._gates.run:
            if self.first.acquire(blocking=False):
                self.release.wait()
            return verdict(Status.OK)


def test_an_evaluation_that_never_ends_costs_its_own_episode_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "DEADLINE_S", 0.5)
    limits = Limits(model_calls=2, builds=1, evaluations=1, infra_retries=2)

    def answer(turn: TurnContext) -> Reply:
        time.sleep(0.5)  # so long each has left once the one that hangs before it is overdue
        return Reply(fenced(GOOD))

    planned, agent = episodes(4, turns=1), Fake(answer)
    with RunWriter(folder) as run, Hanging(ScriptedDevice(), secret="s", builds=1, runs=1) as evaluator:
        play(planned, run, evaluator, {"fake": agent}, limits)
        assert not evaluator.release.is_set()
        evaluator.release.set()
    stored = read_run(folder)
    assert Counter(episode.status for episode in stored.episodes) == {"infra": 1, "done": 3}
    (failed,) = [episode for episode in stored.episodes if episode.status == "infra"]
    assert failed.problem.startswith("Overdue: ") and set(Counter(agent.asked).values()) == {1}


def test_an_answer_to_other_messages_is_not_taken(folder: Path) -> None:
    journal = Journal(folder)
    asked = (Message(role="user", content="one"),)
    journal.put("e", 1, asked, Reply("answer", usage=Usage(prompt_tokens=3)))
    journal.close()
    again = Journal(folder)
    assert again.get("e", 1, asked) == Reply("answer", usage=Usage(prompt_tokens=3))
    assert again.get("e", 1, (Message(role="user", content="two"),)) is None
    assert again.get("e", 2, asked) is None
    again.close()


class Told(Watcher):
    def __init__(self) -> None:
        self.said: list[str] = []

    def on_event(self, planned: Planned, event: Event) -> None:
        if isinstance(event, Judged):
            self.said.append(f"turn {event.record.turn}")

    def on_end(self, planned: Planned, record: EpisodeRecord) -> None:
        self.said.append(record.status)

    def on_retry(self, planned: Planned, record: EpisodeRecord) -> None:
        self.said.append("retry")


def test_what_the_machine_fails_at_goes_on_from_its_last_turn(sittings: Sittings) -> None:
    tries: Counter[int] = Counter()

    def flaky(turn: TurnContext) -> Reply | Exception:
        tries[turn.number] += 1
        return ModelError("overloaded") if turn.number == 2 and tries[2] < 3 else Reply(fenced(GOOD))

    told = Told()
    stored = sittings.play(Fake(flaky), episodes(1, turns=2), told)
    assert tries == {1: 1, 2: 3}
    assert told.said == ["turn 1", "retry", "retry", "turn 2", "done"]
    assert [(episode.status, episode.turns) for episode in stored.episodes] == [("done", 2)]
    assert len(stored.turns) == 2


def test_what_it_keeps_failing_at_is_in_no_rate_and_is_played_by_the_next_sitting(sittings: Sittings) -> None:
    planned = episodes(2)
    broken = Fake(lambda t: ModelError("down") if t.identity.trajectory else Reply(fenced(GOOD)))
    stored = sittings.play(broken, planned)
    assert sorted((episode.trajectory, episode.status) for episode in stored.episodes) == [(0, "done"), (1, "infra")]
    assert next(episode for episode in stored.episodes if episode.status == "infra").problem == "ModelError: down"
    assert [name for name, _ in broken.asked].count(planned[1].id) == 3
    assert [one.id for one in trajectories(stored)] == [planned[0].id]
    assert left(planned, stored.episodes) == (planned[1],)
    stored = sittings.play(Fake(), planned)
    assert [episode.status for episode in stored.episodes] == ["done", "done"]
    assert len(trajectories(stored)) == 2


def test_a_machine_that_cannot_judge_costs_no_answer(sittings: Sittings) -> None:
    failing = threading.Event()
    failing.set()

    def interfere(options: object, execution: object) -> object:
        if failing.is_set():
            raise InfrastructureError("no memory")
        return execution

    sittings.device.interfere = interfere  # type: ignore[assignment]
    agent, planned = Fake(), episodes(1, turns=1)
    stored = sittings.play(agent, planned)
    assert [episode.status for episode in stored.episodes] == ["infra"]
    assert len(agent.asked) == 1
    failing.clear()
    stored = sittings.play(agent, planned)
    assert [episode.status for episode in stored.episodes] == ["done"]
    assert len(agent.asked) == 1


def test_an_agent_that_is_set_up_wrongly_ends_the_sitting(sittings: Sittings) -> None:
    with pytest.raises(UsageError, match="no key"):
        sittings.play(Fake(lambda turn: UsageError("no key")), episodes(3))
    assert read_run(sittings.folder).episodes == ()


def test_a_disk_that_is_full_ends_the_sitting_and_nothing_is_lost(
    sittings: Sittings, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = episodes(1)
    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "turn", lambda self, record: (_ for _ in ()).throw(InfrastructureError("full")))
        with pytest.raises(InfrastructureError, match="full"):
            sittings.play(Fake(), planned)
    agent = Fake()
    stored = sittings.play(agent, planned)
    assert [number for _, number in agent.asked] == [2]
    assert len(stored.turns) == 2


def test_the_kernel_that_is_judged_again_is_the_fastest_on_target_else_the_best() -> None:
    slow, fast = verdict(target=True, speedup=0.4), verdict(target=True, speedup=0.6)
    fallback = verdict(speedup=0.9)
    wrong = verdict(Status.WRONG_OUTPUT)
    found = (turn(number=1, found=slow), turn(number=2, found=fallback), turn(number=3, found=fast), turn(number=4))
    best = best_turn(found)
    assert best is not None and best.turn == 3
    best = best_turn((turn(number=1, found=wrong), turn(number=2, found=verdict()), turn(number=3, found=verdict())))
    assert best is not None and best.turn == 2
    assert best_turn((turn(number=1, found=wrong),)) is None
    assert best_turn(()) is None


def test_best_kernels_are_judged_again_once_under_other_conditions(sittings: Sittings) -> None:
    sittings.play(Fake(lambda turn: Reply(fenced(GOOD) if turn.number == 2 else "none")), episodes(2))
    device = ScriptedDevice(family="wgmma")
    for expected in (2, 0):
        results: list[object] = []
        with (
            RunWriter(sittings.folder) as run,
            Evaluator(device, secret="s", epoch=EPOCH, random_schedules=1) as evaluator,
        ):
            remeasure(run, evaluator, 2, results.append)
        assert len(results) == expected
    stored = read_run(sittings.folder)
    assert [(found.turn, found.epoch, found.verdict.score) for found in stored.remeasured] == [(2, 1, 0.5)] * 2
    first = next(turn for turn in stored.turns if turn.turn == 2).verdict.provenance.conditions
    assert {found.verdict.provenance.conditions for found in stored.remeasured}.isdisjoint({first})
    assert [one.again is not None and one.again.target for one in trajectories(stored)] == [True, True]


def test_a_kernel_that_cannot_be_judged_again_is_left_for_later(sittings: Sittings) -> None:
    sittings.play(Fake(), episodes(1, turns=1))

    def interfere(options: object, execution: object) -> object:
        raise InfrastructureError("no memory")

    results: list[object] = []
    with (
        RunWriter(sittings.folder) as run,
        Evaluator(ScriptedDevice(interfere=interfere), secret="s", epoch=EPOCH) as evaluator,  # type: ignore[arg-type]
    ):
        remeasure(run, evaluator, 1, results.append)
    assert results == [None]
    assert read_run(sittings.folder).remeasured == ()


def test_an_interrupt_ends_a_second_judgement_without_waiting_for_what_runs() -> None:
    begun, release = list[str](), threading.Event()

    def hang() -> None:
        begun.append("hang")
        time.sleep(0.1)  # by then it is waited for
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        release.wait()

    with pytest.raises(KeyboardInterrupt):
        runner.concurrently([hang, lambda: begun.append("another")], 1)
    release.set()
    assert begun == ["hang"]
    runner.concurrently([lambda: begun.append("first"), lambda: begun.append("second")], 1)
    assert begun == ["hang", "first", "second"]
