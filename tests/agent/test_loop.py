"""The loop: messages, turns, records, failures of machine and model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from pydantic import TypeAdapter

from ptxgym.agent import (
    Answered,
    Event,
    Identity,
    Judged,
    ModelError,
    NoMoreAnswers,
    Prompting,
    Reply,
    Started,
    Text,
    Trouble,
    TurnContext,
    loop,
    opening_messages,
    run_episode,
)
from ptxgym.agent.loop import prompt_sha256
from ptxgym.agent.prompting import fenced
from ptxgym.device.protocol import Execution, RunOptions
from ptxgym.episode import Episode
from ptxgym.errors import UsageError, WorkerDied
from ptxgym.evaluator import Evaluator
from ptxgym.store.records import EpisodeRecord, Message, TokenTrace, TurnRecord, Usage
from ptxgym.verdict import Finding, Party, Severity
from tests.bad_kernels import host
from tests.scripted import ScriptedDevice

RIGHT = host("")
ENV = "PTX-Gemm-H100"
IDENTITY = Identity("ptxgym/Gemm-H100-v1", "scripted", trajectory=3, seed=7, tags={"sweep": "test"})
COST = Usage(prompt_tokens=100, completion_tokens=10, cost_usd=0.5)


@dataclass
class Scripted:
    """Says what its script says; an exception in it is raised."""

    script: Sequence[str | Reply | Exception]
    prompting: Prompting = field(default_factory=Prompting)
    name: str = "scripted"
    seen: list[tuple[tuple[Message, ...], TurnContext]] = field(default_factory=list)

    async def reply(self, messages: Sequence[Message], turn: TurnContext, on_text: Callable[[str], None]) -> Reply:
        self.seen.append((tuple(messages), turn))
        said = self.script[turn.number - 1]
        if isinstance(said, Exception):
            raise said
        on_text("thinking")
        return said if isinstance(said, Reply) else Reply(said, usage=COST, model="m-1")

    def describe(self) -> dict[str, object]:
        return {"script": len(self.script)}


@pytest.fixture
def device() -> ScriptedDevice:
    return ScriptedDevice(family="fma")


@pytest.fixture
def evaluator(device: ScriptedDevice) -> Iterator[Evaluator]:
    with Evaluator(device) as made:
        yield made


def play(
    evaluator: Evaluator, agent: Scripted, *, identity: Identity = IDENTITY, turns: int | None = None
) -> tuple[EpisodeRecord, tuple[TurnRecord, ...], list[Event]]:
    events: list[Event] = []
    episode = Episode(ENV, evaluator, turns=turns or len(agent.script))
    record, played = asyncio.run(run_episode(episode, agent, identity, events.append))
    return record, played, events


def test_records_tell_the_episode(evaluator: Evaluator) -> None:
    agent = Scripted(["I will not.", f"Here:\n{fenced(RIGHT)}\n", fenced(RIGHT)])
    record, turns, events = play(evaluator, agent)
    assert record.id == "ptxgym/Gemm-H100-v1/base/scripted/none/3"
    assert (record.status, record.turns, record.best_score, record.best_turn) == ("done", 3, 0.2, 2)
    assert (record.seed, record.trajectory, record.tags) == (7, 3, {"sweep": "test"})
    assert record.usage == Usage(prompt_tokens=300, completion_tokens=30, cost_usd=1.5)
    assert [(t.turn, t.parent_turn, t.score, t.reward, t.done) for t in turns] == [
        (1, None, 0.0, 0.0, False),
        (2, 1, 0.2, 0.2, False),
        (3, 2, 0.2, 0.0, True),
    ]
    assert turns[0].verdict.code == "submission.no_code" and turns[0].source == "I will not."
    assert "starts with ```cuda" in turns[0].feedback
    assert turns[1].source == RIGHT and turns[1].response.startswith("Here:") and turns[1].model == "m-1"
    assert [type(event) for event in events] == [Started, Text, Answered, Judged] * 3
    assert [event.record for event in events if isinstance(event, Judged)] == list(turns)
    assert [context.turns_left for _, context in agent.seen] == [3, 2, 1]
    assert [context.last_verdict for _, context in agent.seen] == [None, turns[0].verdict, turns[1].verdict]
    assert agent.seen[0][1].seed == 7 and agent.seen[0][1].task.name == "gemm"
    for turn in turns:
        assert TurnRecord.model_validate_json(turn.model_dump_json()) == turn


def test_plain_messages_are_prompt_answers_and_feedback(evaluator: Evaluator) -> None:
    answers = ["", fenced(RIGHT)]
    _, turns, _ = play(evaluator, Scripted(answers))
    prompt = Episode(ENV, evaluator, turns=2).prompt()
    assert turns[0].messages == (Message(role="user", content=prompt),)
    assert turns[1].messages == (
        Message(role="user", content=prompt),
        Message(role="assistant", content="(no answer)"),
        Message(role="user", content=turns[0].feedback),
    )


def test_the_same_replies_make_the_same_messages(evaluator: Evaluator) -> None:
    script = ["no", fenced(RIGHT), fenced(RIGHT)]
    first, second = (play(evaluator, Scripted(script))[1] for _ in range(2))
    assert [turn.messages for turn in first] == [turn.messages for turn in second]


def test_canary_stands_in_the_first_message_alone(evaluator: Evaluator) -> None:
    marked = Identity(IDENTITY.env, "scripted", canary="ptxgym-canary-42")
    _, turns, _ = play(evaluator, Scripted(["no", "no"]), identity=marked)
    assert ["ptxgym-canary-42" in message.content for message in turns[1].messages] == [True, False, False]
    episode = Episode(ENV, evaluator, turns=2)
    opening = asyncio.run(opening_messages(episode, Scripted([]), marked))
    assert opening == turns[0].messages
    assert prompt_sha256(opening) != prompt_sha256(asyncio.run(opening_messages(episode, Scripted([]), IDENTITY)))


def test_an_agent_without_more_answers_ends_the_episode_with_what_was_played(evaluator: Evaluator) -> None:
    agent = Scripted([fenced(RIGHT), "no", NoMoreAnswers("the folder holds 2 answers"), "never"])
    record, turns, _ = play(evaluator, agent)
    assert (record.status, record.turns, record.best_score, record.problem) == ("done", 2, 0.2, "")
    assert record.ended == "the folder holds 2 answers" and len(turns) == 2 and len(agent.seen) == 3
    whole, _, _ = play(evaluator, Scripted([fenced(RIGHT)]))
    assert whole.ended == ""
    with pytest.raises(UsageError, match="agent scripted: nothing is there"):
        play(evaluator, Scripted([NoMoreAnswers("nothing is there")]))


def test_of_a_proven_solution_the_name_is_on_record_and_no_line(device: ScriptedDevice, evaluator: Evaluator) -> None:
    lines = [line for line in RIGHT.splitlines() if len(line) > 30]
    quoted = lines[2]
    party = Party(who="warp 0", did="stores", line=3, source_line=quoted)
    device.findings = (
        Finding(
            code="proxy.missing_fence", severity=Severity.WARNING, message="no fence", line=3, source_line=quoted,
            parties=(party,),
        ),
    )  # fmt: skip
    plain, _, _ = played = play(evaluator, Scripted([fenced(RIGHT)] * 2))
    assert quoted in str(played), "what a model hands in is on record, and its feedback quotes it"
    name = "gemm/solutions/h100/naive.cu"
    reply = Reply(fenced(RIGHT), usage=COST, solution=name)
    record, turns, _ = play(evaluator, Scripted([reply] * 2))
    assert (record.best_score, record.best_turn) == (plain.best_score, plain.best_turn)
    for turn in turns:
        assert (turn.solution, turn.source) == (name, "")
        assert not [line for line in lines if line.strip() in turn.model_dump_json()]
        assert f"{name}, SHA-256 {turn.verdict.provenance.source_sha256}" in turn.response
        assert turn.verdict.findings[0].line == 3 and "no fence" in turn.feedback
    assert turns[1].messages[1].content == turns[0].response.strip()


def test_an_answer_that_was_cut_off_is_called_so(evaluator: Evaluator) -> None:
    cut = Reply("I think that the tiles", finish_reason="length")
    whole = Reply(f"{fenced(RIGHT)}\nWhat it does is", finish_reason="length")
    bare = Reply(RIGHT, finish_reason="length")
    _, turns, _ = play(evaluator, Scripted([cut, whole, bare]))
    assert [turn.verdict.code for turn in turns] == [
        "submission.truncated_response",
        turns[1].verdict.code,
        "submission.truncated_response",
    ]
    assert turns[1].score == 0.2, "what was complete before the cut counts"
    assert "cut off" in turns[0].feedback and turns[0].finish_reason == "length"


def test_refusals_are_turns_and_an_episode_of_nothing_else_is_refused(evaluator: Evaluator) -> None:
    refusal = Reply("I cannot help with that.", refused=True, finish_reason="content_filter")
    record, turns, _ = play(evaluator, Scripted([refusal, refusal]))
    assert (record.status, record.problem) == ("refused", "the model refused all 2 turns")
    assert [(turn.refused, turn.verdict.code) for turn in turns] == [(True, "submission.no_code")] * 2
    record, _, _ = play(evaluator, Scripted([refusal, fenced(RIGHT)]))
    assert (record.status, record.problem, record.best_score) == ("done", "", 0.2)


def test_several_blocks_are_remarked(evaluator: Evaluator) -> None:
    _, turns, _ = play(evaluator, Scripted([f"{fenced('int x;')}\nbetter:\n{fenced(RIGHT)}"]))
    assert turns[0].notes == ("several_blocks",) and turns[0].source == RIGHT + "\n" * (not RIGHT.endswith("\n"))


def test_an_evaluation_that_the_machine_failed_at_is_repeated_twice(
    evaluator: Evaluator, device: ScriptedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "JUDGE_PAUSES_S", (0.0, 0.0))
    failures = [WorkerDied("the worker died"), WorkerDied("and again")]

    def fail(options: RunOptions, execution: Execution) -> Execution:
        if failures:
            raise failures.pop(0)
        return execution

    device.interfere = fail
    agent = Scripted([fenced(RIGHT)])
    record, turns, events = play(evaluator, agent)
    assert (record.status, record.best_score, len(turns), len(agent.seen)) == ("done", 0.2, 1, 1)
    assert ["repeated" in event.message for event in events if isinstance(event, Trouble)] == [True, True]


def test_a_machine_that_keeps_failing_ends_the_episode(
    evaluator: Evaluator, device: ScriptedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "JUDGE_PAUSES_S", (0.0, 0.0))
    played = 0

    def fail(options: RunOptions, execution: Execution) -> Execution:
        if played:
            raise WorkerDied("the worker died")
        return execution

    device.interfere = fail
    agent = Scripted([fenced(RIGHT), fenced(RIGHT + "// again\n"), fenced(RIGHT)])

    def on_event(event: Event) -> None:
        nonlocal played
        played += isinstance(event, Judged)

    record, turns = asyncio.run(run_episode(Episode(ENV, evaluator, turns=3), agent, IDENTITY, on_event))
    assert (record.status, record.turns, record.best_score, record.best_turn) == ("infra", 1, 0.2, 1)
    assert record.problem == "WorkerDied: the worker died" and len(turns) == 1 and len(agent.seen) == 2


def test_a_model_without_answer_ends_the_episode_at_once(evaluator: Evaluator) -> None:
    agent = Scripted([fenced(RIGHT), ModelError("503 for an hour"), fenced(RIGHT)])
    record, turns, _ = play(evaluator, agent)
    assert (record.status, record.problem, len(turns)) == ("infra", "ModelError: 503 for an hour", 1)
    assert record.usage == COST


def test_a_first_turn_without_answer_leaves_an_empty_episode(evaluator: Evaluator) -> None:
    record, turns, _ = play(evaluator, Scripted([ModelError("gone")]))
    assert (record.status, record.turns, record.best_score, record.best_turn, turns) == ("infra", 0, 0.0, None, ())
    assert record.usage == Usage()


def test_wrong_setups_and_bugs_are_raised(evaluator: Evaluator) -> None:
    with pytest.raises(UsageError, match="no key"):
        play(evaluator, Scripted([UsageError("no key")]))
    with pytest.raises(KeyError):
        play(evaluator, Scripted([KeyError("a bug")]))
    begun = Episode(ENV, evaluator, turns=2)
    begun.submit("x")
    with pytest.raises(UsageError, match="has 1 turns already"):
        asyncio.run(run_episode(begun, Scripted([]), IDENTITY))


def test_many_episodes_in_one_loop(evaluator: Evaluator) -> None:
    async def together() -> list[tuple[EpisodeRecord, tuple[TurnRecord, ...]]]:
        episodes = [Episode(ENV, evaluator, turns=2) for _ in range(4)]
        agent = Scripted(["no", fenced(RIGHT)])
        identities = [Identity(IDENTITY.env, "scripted", trajectory=number) for number in range(4)]
        return await asyncio.gather(*map(run_episode, episodes, [agent] * 4, identities))

    results = asyncio.run(together())
    assert [record.id[-1] for record, _ in results] == ["0", "1", "2", "3"]
    assert {record.best_score for record, _ in results} == {0.2}


def test_replies_go_to_json_and_back() -> None:
    reply = Reply("a", "b", "length", "m", COST, TokenTrace(completion_ids=(1, 2)), 3, True)
    adapter = TypeAdapter(Reply)
    assert adapter.validate_json(adapter.dump_json(reply)) == reply
