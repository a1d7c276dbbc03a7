"""Many rollouts at once: places, deadlines, and evaluations that never end."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from ptxgym import judging
from ptxgym.adapters.group import group_advantages, group_rewards
from ptxgym.adapters.rollout import Rollout
from ptxgym.agent import Identity, Prompting, Reply, TurnContext, run_episode
from ptxgym.agent.prompting import fenced
from ptxgym.episode import Episode
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.judging import Gate, Judging, Overdue
from ptxgym.store.records import Message
from ptxgym.task import Task
from ptxgym.verdict import Status, Verdict
from tests.fixit.scripted import naive
from tests.store.samples import verdict

MANY = 512
WEDGED = "never ends"
ROW = {"env": "PTX-Gemm-H100", "options": {"variant": "k64", "turns": 2}}
TASK_TIME_S = 600.0
"""For what cannot be late: the test's own limit ends it."""


class Wedging(Evaluator):
    """Hangs on the wedged text for as long as `release` is not set; of others it reads the verdict in the text."""

    def __init__(self, release: threading.Event) -> None:
        super().__init__("emulator", secret="s")
        self.release = release
        self.running = Counter[str]()
        self.most = 0
        self.lock = threading.Lock()

    def evaluate(
        self,
        text: str,
        task: Task | str,
        arch: str = "h100",
        workload: str | None = None,
        *,
        variant: str | None = None,
    ) -> Verdict:
        with self.lock:
            self.running["now"] += 1
            self.most = max(self.most, self.running["now"])
        try:
            if WEDGED in text:
                self.release.wait()
            return self.verdict(text, task, arch, workload, variant)
        finally:
            with self.lock:
                self.running["now"] -= 1

    def verdict(self, text: str, task: Task | str, arch: str, workload: str | None, variant: str | None) -> Verdict:
        found = verdict(Status.OK, target="target" in text)
        known = hashlib.sha256(text.encode()).hexdigest()
        return found.model_copy(update={"provenance": found.provenance.model_copy(update={"source_sha256": known})})


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Ends what is wedged at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def settings() -> Iterator[Callable[..., None]]:
    """`configure`, undone after the test."""
    before = judging.shared()
    yield judging.configure
    judging._SHARED[:] = [before]


async def played(rollout: Rollout, *answers: str) -> str:
    """Play as an asynchronous adapter does; return what became of it."""
    for answer in answers:
        try:
            await rollout.aanswer(answer)
        except InfrastructureError as error:
            return type(error).__name__
    return "played"


@pytest.mark.parametrize(("at_once", "wedges"), [(8, 1), (2, 2)])
def test_of_512_rollouts_none_waits_for_an_evaluation_that_never_ends(
    release: threading.Event, settings: Callable[..., None], at_once: int, wedges: int
) -> None:
    """The wedged come first and take every place, or one of eight; the others end while these still hang."""
    settings(at_once=at_once, deadline_s=3.0)
    evaluator = Wedging(release)

    async def play() -> tuple[list[Rollout], list[str]]:
        rollouts = [await Rollout.aof_row(ROW, evaluator) for _ in range(MANY)]
        scripts = [
            (fenced(WEDGED),) if at < wedges else (fenced(f"kernel {at}"), fenced(f"target {at}")) for at in range(MANY)
        ]
        ended = await asyncio.gather(*(played(*each) for each in zip_star(rollouts, scripts)))
        assert not release.is_set()  # what hung still hangs
        return rollouts, ended

    rollouts, ended = asyncio.run(play())  # whose end waits for no thread of ours
    assert ended == ["Overdue"] * wedges + ["played"] * (MANY - wedges)
    assert all("was not over after 3 s" in rollout.lost for rollout in rollouts[:wedges])
    rewards = group_rewards([rollout.member for rollout in rollouts])
    assert rewards[:wedges] == [None] * wedges and rewards[wedges:] == pytest.approx([0.5] * (MANY - wedges))
    assert group_advantages(rewards)[wedges:] == group_advantages(rewards[wedges:])
    assert evaluator.most <= at_once + wedges


def zip_star(rollouts: list[Rollout], scripts: list[tuple[str, ...]]) -> Iterator[tuple[Rollout | str, ...]]:
    for rollout, script in zip(rollouts, scripts, strict=True):
        yield rollout, *script


class RealButFor(Wedging):
    """Judges on the emulator, but hangs on the wedged text."""

    def verdict(self, text: str, task: Task | str, arch: str, workload: str | None, variant: str | None) -> Verdict:
        return Evaluator.evaluate(self, text, task, arch, workload, variant=variant)


def test_the_same_with_the_emulator(release: threading.Event, settings: Callable[..., None]) -> None:
    settings(at_once=8, deadline_s=TASK_TIME_S)
    with RealButFor(release) as evaluator:
        first = Rollout.of_row(ROW, evaluator)
        right = fenced(naive("k64"))
        assert first.answer(right).score == 0.2  # now the text's verdict is known
        settings(at_once=8, deadline_s=8.0)

        async def play() -> tuple[list[Rollout], list[str]]:
            rollouts = [await Rollout.aof_row(ROW, evaluator) for _ in range(MANY)]
            answers = [fenced(WEDGED), *[right] * (MANY - 1)]
            ended = await asyncio.gather(*map(played, rollouts, answers))
            assert not release.is_set()
            return rollouts, ended

        rollouts, ended = asyncio.run(play())
        assert ended == ["Overdue", *["played"] * (MANY - 1)]
        assert group_rewards([each.member for each in rollouts]) == [None, *[first.reward] * (MANY - 1)]
        release.set()


def test_synchronous_rollouts_have_the_same_deadline(release: threading.Event, settings: Callable[..., None]) -> None:
    settings(at_once=1, deadline_s=0.2)
    evaluator = Wedging(release)
    lost, sibling = (Rollout.of_row(ROW, evaluator) for _ in range(2))
    with pytest.raises(Overdue, match=r"not over after 0\.2 s"):
        lost.answer(fenced(WEDGED))
    assert lost.reward is None and lost.metrics == {"lost": 1.0}
    settings(at_once=1, deadline_s=TASK_TIME_S)
    assert sibling.answer(fenced("kernel")).score == 0.2


def test_a_kernel_to_start_from_has_the_deadline_too(release: threading.Event, settings: Callable[..., None]) -> None:
    settings(at_once=1, deadline_s=0.2)
    row = {**ROW, "options": {**ROW["options"], "init": WEDGED}}  # type: ignore[dict-item]
    with pytest.raises(Overdue):
        Rollout.of_row(row, Wedging(release))
    with pytest.raises(Overdue):
        asyncio.run(Rollout.aof_row(row, Wedging(release)))


def test_calls_begin_in_order_and_no_more_than_there_are_places() -> None:
    bench, begun, go = Judging(at_once=2, deadline_s=TASK_TIME_S), list[int](), threading.Semaphore(0)

    def work(number: int) -> int:
        begun.append(number)
        go.acquire()
        return number

    async def run() -> list[int]:
        tasks = [asyncio.create_task(bench.acall(lambda at=at: work(at))) for at in range(6)]  # type: ignore[misc]
        seen = []
        for _ in range(6):
            while len(begun) < min(6, len(seen) + 2):
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            assert sorted(begun) == list(range(min(6, len(seen) + 2)))
            go.release()
            seen.append(0)
            while sum(task.done() for task in tasks) < len(seen):
                await asyncio.sleep(0.001)
        return await asyncio.gather(*tasks)

    assert asyncio.run(run()) == list(range(6))


def test_who_stops_waiting_gives_back_the_place_by_the_deadline(release: threading.Event) -> None:
    bench = Judging(at_once=1, deadline_s=2.0)

    async def run() -> str:
        hanging, waiting = (asyncio.create_task(bench.acall(release.wait)) for _ in range(2))
        await asyncio.sleep(0.01)
        for task in (waiting, hanging):
            task.cancel()
        await asyncio.gather(hanging, waiting, return_exceptions=True)
        return await bench.acall(lambda: "judged")

    assert asyncio.run(run()) == "judged"  # though that deadline comes when the loop of who left may have ended


def test_what_nobody_waits_for_keeps_its_place_while_it_runs(release: threading.Event) -> None:
    bench, running = Judging(at_once=2, deadline_s=TASK_TIME_S), Counter[str]()
    lock = threading.Lock()

    def work() -> None:
        with lock:
            running["now"] += 1
        release.wait()
        with lock:
            running["now"] -= 1

    async def round_of_two() -> None:
        tasks = [asyncio.create_task(bench.acall(work)) for _ in range(2)]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in ended] == [asyncio.CancelledError] * 2

    for _ in range(10):
        asyncio.run(round_of_two())
        assert running["now"] <= 2
    release.set()
    assert bench.call(lambda: "judged") == "judged"  # once they have ended, long before their deadline
    while bench._free < 2:
        time.sleep(0.001)
    assert running["now"] == 0 and not bench._waiting


def test_an_interrupt_leaves_the_place_to_what_still_runs(release: threading.Event) -> None:
    bench = Judging(at_once=1, deadline_s=TASK_TIME_S)

    def interrupt() -> None:
        time.sleep(0.1)  # by then its caller waits
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        release.wait()

    with pytest.raises(KeyboardInterrupt):
        bench.call(interrupt)
    assert bench._free == 0
    release.set()
    assert bench.call(lambda: "judged") == "judged"


@pytest.mark.parametrize("give_up", ["cancel", "deadline"])
def test_a_turn_that_was_given_up_does_not_count_when_its_verdict_comes(
    release: threading.Event, settings: Callable[..., None], give_up: str
) -> None:
    settings(at_once=2, deadline_s=0.2 if give_up == "deadline" else TASK_TIME_S)
    evaluator = Wedging(release)
    episode = Episode("PTX-Gemm-H100", evaluator, turns=1)

    async def leave() -> None:
        waiting = asyncio.create_task(episode.asubmit(f"{WEDGED}, target"))
        while not evaluator.running["now"]:
            await asyncio.sleep(0.001)
        if give_up == "cancel":
            waiting.cancel()
        with pytest.raises((asyncio.CancelledError, Overdue)):
            await waiting

    asyncio.run(leave())
    release.set()
    settings(at_once=2, deadline_s=TASK_TIME_S)
    turn = asyncio.run(episode.asubmit("kernel"))  # once the one before has left the episode
    assert (turn.number, turn.score, turn.reward, episode.turns) == (1, 0.2, pytest.approx(0.2), (turn,))


def test_what_is_waited_for_elsewhere_is_let_go_once_by_who_leaves(release: threading.Event) -> None:
    bench, ends = Judging(at_once=2, deadline_s=TASK_TIME_S), list[str]()

    def work(name: str, within: bool) -> None:
        if within:
            with judging.withdrawing(lambda: ends.append(name)):
                release.wait()
        else:
            release.wait()
            with judging.withdrawing(lambda: ends.append(name)):
                pass

    async def leave() -> None:
        tasks = [asyncio.create_task(bench.acall(partial(work, *each))) for each in (("first", True), ("late", False))]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert ends == ["first"]

    asyncio.run(leave())
    release.set()
    bench.call(partial(work, "waited for", True))
    with judging.withdrawing(lambda: ends.append("outside")):
        while bench._free < 2:
            time.sleep(0.001)
    assert ends == ["first", "late"]


def test_each_is_yielded_in_order_and_no_more_run_at_once_than_there_are_places() -> None:
    bench, now, most, lock = Judging(at_once=3, deadline_s=TASK_TIME_S), Counter[str](), [0], threading.Lock()

    def work(number: int) -> int:
        with lock:
            now["running"] += 1
            most[0] = max(most[0], now["running"])
        time.sleep(0.02 if number % 3 else 0.05)
        with lock:
            now["running"] -= 1
        return number

    assert list(bench.each(partial(work, number) for number in range(9))) == list(range(9))
    assert 1 <= most[0] <= 3 and list(bench.each([])) == []


@pytest.mark.parametrize("ending", ["error", "leaving", "deadline"])
def test_who_ends_before_the_last_waits_for_none_that_runs_and_lets_no_other_begin(
    release: threading.Event, ending: str
) -> None:
    bench = Judging(at_once=2, deadline_s=1.0 if ending == "deadline" else TASK_TIME_S)
    begun, ends, hanging = list[str](), list[str](), threading.Event()

    def hang() -> str:
        with judging.withdrawing(lambda: ends.append("hang")):
            hanging.set()
            release.wait()
        return "hung"

    def first() -> str:
        hanging.wait()
        if ending == "error":
            raise ZeroDivisionError
        return "first"

    results = bench.each([first, hang, hang, *[partial(begun.append, f"later {at}") for at in range(5)]])  # type: ignore[list-item]
    if ending == "error":
        with pytest.raises(ZeroDivisionError):
            next(results)
    else:
        assert next(results) == "first"
    if ending == "deadline":
        with pytest.raises(Overdue):
            next(results)
    results.close()
    assert "hang" in ends and not bench._waiting
    release.set()
    while bench._free < 2:
        time.sleep(0.001)
    assert begun == []


def test_what_is_raised_is_raised_and_an_own_timeout_is_no_deadline() -> None:
    bench = Judging(deadline_s=TASK_TIME_S)

    def fail() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own") as raised:
        bench.call(fail)
    assert not isinstance(raised.value, Overdue)
    with pytest.raises(TimeoutError, match="of its own"):
        asyncio.run(bench.acall(fail))


def test_without_threads_the_machine_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Judging(at_once=1)

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(InfrastructureError, match="can't start new thread"):
            bench.call(lambda: 1)
    assert bench.call(lambda: 1) == 1


class Says:
    """An agent with one answer."""

    name = "says"
    prompting = Prompting()

    def __init__(self, text: str) -> None:
        self._text = text

    async def reply(self, messages: Sequence[Message], turn: TurnContext, on_text: Callable[[str], None]) -> Reply:
        return Reply(fenced(self._text))


async def by_evaluator(evaluator: Evaluator, text: str) -> str:
    return str((await evaluator.aevaluate(text, "gemm", variant="k64")).status)


async def by_answer(evaluator: Evaluator, text: str) -> str:
    return str((await Episode("PTX-Gemm-H100", evaluator).aanswer(fenced(text))).verdict.status)


async def by_submission(evaluator: Evaluator, text: str) -> str:
    return str((await Episode("PTX-Gemm-H100", evaluator).asubmit(text)).verdict.status)


async def by_agent(evaluator: Evaluator, text: str) -> str:
    episode = Episode("PTX-Gemm-H100", evaluator, turns=1)
    record, turns = await run_episode(episode, Says(text), Identity("ptxgym/Gemm-H100-v1", "says"))
    if record.status == "infra":
        raise Overdue(record.problem)
    return str(turns[0].verdict.status)


Asks = Callable[[Evaluator, str], Coroutine[Any, Any, str]]
IN_FLIGHT = 80
"""More than asyncio's default pool ever has threads (32)."""


@pytest.mark.parametrize("ask", [by_evaluator, by_answer, by_submission, by_agent])
def test_whoever_waits_in_an_event_loop_is_not_starved_by_evaluations_that_never_end(
    ask: Asks, release: threading.Event, settings: Callable[..., None]
) -> None:
    settings(at_once=8, deadline_s=0.3)
    evaluator = Wedging(release)

    async def run() -> list[str]:
        wedged = [asyncio.create_task(ask(evaluator, f"{WEDGED} {at}")) for at in range(IN_FLIGHT)]
        good = [asyncio.create_task(ask(evaluator, f"kernel {at}")) for at in range(3)]
        found = [await each for each in good]
        overdue = await asyncio.gather(*wedged, return_exceptions=True)
        assert not release.is_set() and {type(each) for each in overdue} == {Overdue}
        return found

    assert asyncio.run(run()) == ["ok"] * 3


def test_asyncios_own_threads_are_starved_by_as_many(release: threading.Event) -> None:
    """The control: what `aevaluate` would be without places and deadlines."""
    evaluator = Wedging(release)

    async def run() -> None:
        wedged = [asyncio.to_thread(evaluator.evaluate, f"{WEDGED} {at}", "gemm") for at in range(IN_FLIGHT)]
        hanging = asyncio.gather(*wedged)
        while evaluator.running["now"] < 5:
            await asyncio.sleep(0.01)
        good = asyncio.create_task(asyncio.to_thread(evaluator.evaluate, "kernel", "gemm"))
        assert not (await asyncio.wait([good], timeout=0.5))[0]
        release.set()
        await asyncio.gather(good, hanging)

    asyncio.run(run())


class Queueing(Wedging):
    """Stands for a service: what waits there is its own concern."""

    queues = True


def test_a_service_is_waited_for_by_all_at_once_and_up_to_its_own_deadlines(
    release: threading.Event, settings: Callable[..., None]
) -> None:
    settings(at_once=1, deadline_s=0.05)
    evaluator = Queueing(release)

    async def run() -> list[str]:
        wedged = [asyncio.create_task(by_answer(evaluator, f"{WEDGED} {at}")) for at in range(IN_FLIGHT)]
        while evaluator.running["now"] < IN_FLIGHT:
            await asyncio.sleep(0.01)
        assert await by_answer(evaluator, "kernel") == "ok"
        await asyncio.sleep(0.2)
        assert not any(each.done() for each in wedged)
        release.set()
        return await asyncio.gather(*wedged)

    assert asyncio.run(run()) == ["ok"] * IN_FLIGHT


def test_a_block_of_code_has_places_of_its_own() -> None:
    mine = Judging(at_once=3)
    with judging.using(mine):
        assert judging.of(None) is mine and asyncio.run(chosen()) is mine
        assert judging.of(Queueing(threading.Event())) is not mine
    assert judging.of(None) is judging.shared()


async def chosen() -> Judging:
    return judging.of(None)


def test_a_forked_process_begins_with_all_places_free(release: threading.Event) -> None:
    bench = Judging(at_once=1, deadline_s=TASK_TIME_S)
    hanging = threading.Thread(target=bench.call, args=(release.wait,), daemon=True)
    hanging.start()
    while bench._free:
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        os._exit(bench.call(lambda: 7))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_who_is_overdue_keeps_nobody_out_of_a_gate(release: threading.Event) -> None:
    bench, gate = Judging(at_once=2, deadline_s=0.2), Gate(1)
    most, inside = [0], threading.Semaphore(0)

    def work(wait: bool) -> str:
        with gate:
            inside.release()
            most[0] = max(most[0], inside._value)
            if wait:
                release.wait()
            inside.acquire()
            return "judged"

    with pytest.raises(Overdue):
        bench.call(lambda: work(True))
    assert bench.call(lambda: work(False)) == "judged" and most == [2]  # beside what hangs
    release.set()
    while inside._value:
        time.sleep(0.001)
    with gate, pytest.raises(Overdue):  # one entry again, not two
        bench.call(lambda: work(False))


def test_what_is_not_waited_for_any_more_never_takes_an_entry() -> None:
    bench, gate, never, entered = Judging(at_once=2, deadline_s=0.5), Gate(1), threading.Event(), list[str]()

    def hang() -> None:
        with gate:
            entered.append("hanging")
            never.wait()

    def pass_through() -> str:
        with gate:
            return "through"

    with gate, pytest.raises(Overdue):
        bench.call(hang)  # waits at the gate
    assert [bench.call(pass_through) for _ in range(3)] == ["through"] * 3 and entered == []
    never.set()


def test_limits_that_let_nothing_through_are_refused() -> None:
    with pytest.raises(UsageError, match="at_once must be at least 1, not 0"):
        Judging(at_once=0)
    with pytest.raises(UsageError, match="deadline_s must be positive, not 0"):
        judging.configure(deadline_s=0)
