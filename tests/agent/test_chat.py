"""The agent `openai`: the real client over HTTP against a scripted endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from ptxgym.agent import Identity, ModelError, Reply, TurnContext, load_agent
from ptxgym.agent.answer import split_thinking
from ptxgym.agent.trouble import retry_after_s
from ptxgym.envs import load_env
from ptxgym.errors import UsageError
from ptxgym.store.records import Message, TokenTrace, Usage
from ptxgym.task import load_task
from tests.agent.server import Cut, Fail, Item, Raw, Say, ScriptedServer

KEY = "sk-very-secret-0123456789"
MESSAGES = (Message(role="system", content="s" * 40), Message(role="user", content="u" * 60))
QUICK: dict[str, Any] = {"limits.backoff_s": 0.01, "limits.retries": 2}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)


def context(number: int = 1, on_trouble: Callable[[str], None] = lambda message: None) -> TurnContext:
    return TurnContext(
        env=load_env("PTX-Gemm-H100"),
        task=load_task("gemm"),
        arch="h100",
        number=number,
        turns_left=4,
        identity=Identity("ptxgym/Gemm-H100-v1", "openai", seed=5),
        on_trouble=on_trouble,
    )


def ask(server: ScriptedServer, *, turn: TurnContext | None = None, **settings: Any) -> tuple[Reply, str]:
    """Ask once; return the reply and all pieces together."""
    pieces: list[str] = []
    agent = load_agent("openai", base_url=server.url, model="m", api_key_env="TEST_KEY", **{**QUICK, **settings})
    return asyncio.run(agent.reply(MESSAGES, turn or context(), pieces.append)), "".join(pieces)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_with_reasoning_and_usage(stream: bool) -> None:
    said = Say(
        "x" * 1000,
        reasoning="because",
        usage={
            "prompt_tokens_details": {"cached_tokens": 20},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
    )
    with ScriptedServer([said]) as server:
        reply, pieces = ask(
            server, stream=stream, **{"prices.prompt": 2.0, "prices.cached": 0.5}, prices={"completion": 8.0}
        )
        (request,) = server.requests
    assert (reply.text, reply.reasoning, reply.finish_reason, reply.model) == (
        "x" * 1000,
        "because",
        "stop",
        "scripted-1",
    )
    assert pieces == "because" + "x" * 1000
    assert (reply.attempts, reply.refused, reply.tokens) == (1, False, None)
    usage = reply.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens) == (
        25,
        20,
        251,
        3,
    )
    assert usage.cost_usd == pytest.approx((5 * 2.0 + 20 * 0.5 + 251 * 8.0) / 1e6)
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.messages == [{"role": "system", "content": "s" * 40}, {"role": "user", "content": "u" * 60}]
    assert (request.body["model"], request.body["stream"]) == ("m", stream)
    assert ("stream_options" in request.body, "seed" in request.body) == (stream, False)


def test_sampling_goes_into_the_body_as_it_stands() -> None:
    with ScriptedServer([Say("a")]) as server:
        ask(
            server, send_seed=True, sampling={"temperature": 0.6, "top_k": 20, "chat_template_kwargs": {"a": [1, None]}}
        )
        (request,) = server.requests
    body = request.body
    assert (body["temperature"], body["top_k"], body["chat_template_kwargs"]) == (0.6, 20, {"a": [1, None]})
    assert body["max_completion_tokens"] == 65536, "tables are merged, not replaced"
    assert body["seed"] == 5001


@pytest.mark.parametrize("stream", [True, False])
def test_token_ids_and_logprobs(stream: bool) -> None:
    with ScriptedServer([Say("a", token_ids=(11, 12), logprobs=(-0.5, -1.25))]) as server:
        reply, _ = ask(server, stream=stream, token_trace=True)
    assert reply.tokens == TokenTrace(prompt_ids=(7, 8), completion_ids=(11, 12), completion_logprobs=(-0.5, -1.25))


def test_no_prices_no_cost_and_no_usage_no_tokens() -> None:
    with ScriptedServer([Say("abcd"), Say("abcd", tells_usage=False)]) as server:
        told, _ = ask(server)
        silent, _ = ask(server, prices={"prompt": 1.0, "completion": 1.0})
    assert told.usage.completion_tokens == 1 and told.usage.cost_usd is None
    assert silent.usage == Usage()


def test_reasoning_in_other_places() -> None:
    script = [Say("answer", reasoning="why", reasoning_field="reasoning"), Say("<think>\nwhy\n</think>\n\nanswer")]
    with ScriptedServer(script) as server:
        replies = [ask(server)[0] for _ in script]
    assert [(reply.text, reply.reasoning) for reply in replies] == [("answer", "why")] * 2


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("plain", "", "plain"),
        ("<think>a</think>b", "a", "b"),
        ("\n<think>\na\n</think>\n\nb\n", "a", "b\n"),
        ("a\n</think>\nb", "a", "b"),
        ("<think>never ends", "never ends", ""),
        ("say <think> in the middle </think> of it", "", "say <think> in the middle </think> of it"),
        ("", "", ""),
    ],
)
def test_thinking_tags(text: str, thought: str, answer: str) -> None:
    assert split_thinking(text) == (thought, answer)


def test_characters_in_halves() -> None:
    with ScriptedServer(
        [Say("a\U0001f600b".replace("\U0001f600", "\ud83d\ude00"), piece=1), Say("a\ud83db\udc00")]
    ) as server:
        whole, halves = ask(server)[0], ask(server)[0]
    assert whole.text == "a\U0001f600b"
    assert halves.text == "a\ufffdb\ufffd"


@pytest.mark.parametrize("stream", [True, False])
def test_truncation_and_refusals_are_answers(stream: bool) -> None:
    script = [
        Say("```cuda\nint x", finish_reason="length"),
        Say("", refusal="I must not."),
        Say("", finish_reason="content_filter"),
    ]
    with ScriptedServer(script) as server:
        cut, refusal, filtered = (ask(server, stream=stream)[0] for _ in script)
    assert (cut.text, cut.finish_reason, cut.refused) == ("```cuda\nint x", "length", False)
    assert (refusal.text, refusal.finish_reason, refusal.refused) == ("I must not.", "stop", True)
    assert (filtered.text, filtered.finish_reason, filtered.refused) == ("", "content_filter", True)


@pytest.mark.parametrize(
    "failure",
    [
        Fail(500),
        Fail(529),
        Fail(408),
        Fail(429),
        Fail(503, headers={"Retry-After": "0"}),
        Cut(how="before"),
        Cut("x" * 900, how="within"),
        Cut("x", how="silent"),
        Cut("x", how="error"),
        Raw(b"data: {not json\n\n", "text/event-stream"),
        Raw(b'data: {"choices": [\xff\n\n', "text/event-stream"),
    ],
    ids=repr,
)
def test_what_may_pass_is_tried_again(failure: Item) -> None:
    troubles: list[str] = []
    with ScriptedServer([failure, failure, Say("there")]) as server:
        reply, _ = ask(server, turn=context(on_trouble=troubles.append))
    assert (reply.text, reply.attempts) == ("there", 3)
    assert [line.startswith(f"attempt {n} of 3 failed, the next in ") for n, line in enumerate(troubles, 1)] == [
        True
    ] * 2


@pytest.mark.parametrize(
    "failure",
    [
        Raw(b'{"error": {"message": "overloaded"}}', "application/json"),
        Raw(b"{", "application/json"),
    ],
    ids=repr,
)
def test_what_is_no_completion_is_tried_again(failure: Item) -> None:
    with ScriptedServer([failure, Say("there")]) as server:
        reply, _ = ask(server, stream=False)
    assert (reply.text, reply.attempts) == ("there", 2)


def test_patience_ends() -> None:
    with ScriptedServer([Fail(500, "melting")] * 3) as server, pytest.raises(ModelError) as caught:
        ask(server)
    assert str(caught.value) == f"m at {server.url} gave no answer in 3 attempts; the last: HTTP 500: melting"
    assert len(server.requests) == 3


def test_nobody_listens() -> None:
    with ScriptedServer([]) as server:
        pass
    with pytest.raises(ModelError, match="3 attempts; the last: APIConnectionError: Connection error"):
        ask(server)


def test_silence_is_not_waited_for() -> None:
    slow = Say("x" * 1000, piece=10, delay_s=0.2)
    with ScriptedServer([slow, Say("there")]) as server:
        reply, _ = ask(server, **{"limits.timeout_s": 3})
        assert (reply.text, reply.attempts) == ("there", 2)
    with ScriptedServer([Say("x", delay_s=4.0), Say("there")]) as server:
        reply, _ = ask(server, **{"limits.idle_s": 2})
        assert (reply.text, reply.attempts) == ("there", 2)


def test_retry_after_is_honoured_and_bounded() -> None:
    with ScriptedServer([Fail(429, headers={"Retry-After": "1"}), Say("there")]) as server:
        ask(server)
        first, second = server.requests
    assert second.at_s - first.at_s >= 1.0
    asks = r"asks to wait 1000 s, limits\.retry_after_most_s allows 900 s.*slow down"
    demanding = Fail(429, "slow down", headers={"Retry-After": "1000"})
    with ScriptedServer([demanding]) as server, pytest.raises(ModelError, match=asks):
        ask(server)


def test_retry_after_in_all_its_forms() -> None:
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=60), usegmt=True)
    assert retry_after_s({"retry-after": "7"}) == 7.0
    assert retry_after_s({"retry-after-ms": "1500", "retry-after": "7"}) == 1.5
    assert 50 < (retry_after_s({"retry-after": then}) or 0) <= 60
    assert retry_after_s({"retry-after": past}) == 0.0
    assert retry_after_s({"retry-after": "soon"}) is None and retry_after_s({}) is None


def test_a_crowded_endpoint_holds_all_calls_of_the_agent() -> None:
    with ScriptedServer([Fail(429, headers={"retry-after-ms": "600"}), Say("a"), Say("b")]) as server:
        agent = load_agent("openai", base_url=server.url, model="m", api_key_env="TEST_KEY", **QUICK)

        async def two() -> None:
            first = asyncio.create_task(agent.reply(MESSAGES, context(), lambda text: None))
            while not server.requests:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)  # the 429 has arrived
            await asyncio.gather(first, agent.reply(MESSAGES, context(), lambda text: None))

        asyncio.run(two())
        refused, *later = (request.at_s for request in server.requests)
    assert all(at_s - refused >= 0.6 for at_s in later)


def test_requests_per_minute_are_spaced() -> None:
    with ScriptedServer(lambda body: Say("a")) as server:
        agent = load_agent(
            "openai", base_url=server.url, model="m", api_key_env="TEST_KEY", **{"limits.requests_per_minute": 240}
        )

        async def three() -> None:
            await asyncio.gather(*(agent.reply(MESSAGES, context(), lambda text: None) for _ in range(3)))

        asyncio.run(three())
        times = sorted(request.at_s for request in server.requests)
    assert times[2] - times[0] >= 0.4


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (Fail(401, f"bad key {KEY}"), r"let nobody in \(HTTP 401: .*bad key ….*check the key in TEST_KEY"),
        (Fail(403), "check the key in TEST_KEY"),
        (Fail(404, "no model m"), "no model m.*check base_url and model"),
        (Fail(400, "temperature is not supported"), r"temperature is not supported.*\[sampling\]"),
        (Fail(400, "This model's maximum context length is 8192 tokens"), "even the first prompt"),
        (Fail(413, "too large"), "even the first prompt"),
    ],
)
def test_wrong_settings_are_told_at_once(failure: Fail, said: str) -> None:
    with ScriptedServer([failure]) as server, pytest.raises(UsageError, match=said) as caught:
        ask(server)
    assert KEY not in str(caught.value) and len(server.requests) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", ["text/html", "text/html; charset=utf-8"])
def test_a_web_page_is_a_wrong_address_until_the_endpoint_has_answered(stream: bool, kind: str) -> None:
    page = Raw(b"<!doctype html><title>Welcome</title>", kind)
    said = r"m at http://\S+: the answer is a web page, no chat completion; check base_url"
    with ScriptedServer([page]) as server, pytest.raises(UsageError, match=said):
        ask(server, stream=stream)
    assert len(server.requests) == 1
    with ScriptedServer([Say("a"), page, Say("b")]) as server:  # such as a gateway's notice, in passing
        agent = load_agent("openai", base_url=server.url, model="m", api_key_env="TEST_KEY", stream=stream, **QUICK)

        async def two() -> Reply:
            await agent.reply(MESSAGES, context(), lambda text: None)
            return await agent.reply(MESSAGES, context(), lambda text: None)

        reply = asyncio.run(two())
    assert (reply.text, reply.attempts) == ("b", 2)


@pytest.mark.parametrize("status", [400, 404, 422])
def test_one_refused_request_does_not_end_a_sweep(status: int) -> None:
    too_long = Fail(400, "This model's maximum context length is 8192 tokens")
    with ScriptedServer([Say("a"), Fail(status, "odd"), too_long]) as server:
        agent = load_agent("openai", base_url=server.url, model="m", api_key_env="TEST_KEY")

        async def first_turns() -> Reply:
            await agent.reply(MESSAGES, context(), lambda text: None)
            with pytest.raises(ModelError, match=f"refused one request: HTTP {status}: odd"):
                await agent.reply(MESSAGES, context(), lambda text: None)
            return await agent.reply(MESSAGES, context(), lambda text: None)

        assert asyncio.run(first_turns()).finish_reason == "context_length"


def test_an_empty_account_is_not_asked_again() -> None:
    empty = Fail(429, "no money", code="insufficient_quota")
    with ScriptedServer([empty]) as server, pytest.raises(ModelError, match="no credit left"):
        ask(server)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("failure", "finish_reason", "refused"),
    [
        (Fail(400, "x", code="context_length_exceeded"), "context_length", False),
        (Fail(400, "Your prompt is too long: 300000 > 200000"), "context_length", False),
        (Fail(400, "no", code="content_filter"), "content_filter", True),
    ],
)
def test_refused_requests_that_are_answers(failure: Fail, finish_reason: str, refused: bool) -> None:
    with ScriptedServer([Fail(500), failure]) as server:
        reply, _ = ask(server, turn=context(number=2))
    assert (reply.text, reply.finish_reason, reply.refused, reply.attempts) == ("", finish_reason, refused, 2)


def test_the_key_is_in_no_description_and_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = load_agent("openai", api_key_env="TEST_KEY")
    assert KEY not in repr(agent.describe()) and agent.describe()["api_key_env"] == "TEST_KEY"
    monkeypatch.delenv("TEST_KEY")
    with pytest.raises(UsageError, match="the variable TEST_KEY is not set"):
        load_agent("openai", api_key_env="TEST_KEY")


def test_an_endpoint_without_keys() -> None:
    with ScriptedServer([Say("there")]) as server:
        agent = load_agent("openai", base_url=server.url, model="m", api_key_env="")
        asyncio.run(agent.reply(MESSAGES, context(), lambda text: None))
        assert server.requests[0].headers["authorization"] == "Bearer none"


def test_one_agent_serves_several_event_loops() -> None:
    with ScriptedServer(lambda body: Say("there")) as server:
        agent = load_agent("openai", base_url=server.url, model="m", api_key_env="TEST_KEY")
        for _ in range(2):
            assert asyncio.run(agent.reply(MESSAGES, context(), lambda text: None)).text == "there"


def test_a_call_can_be_cancelled() -> None:
    async def cancelled(server: ScriptedServer) -> None:
        agent = load_agent("openai", base_url=server.url, model="m", api_key_env="TEST_KEY")
        task = asyncio.create_task(agent.reply(MESSAGES, context(), lambda text: None))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ScriptedServer([Say("x" * 6000, piece=1, delay_s=0.1)]) as server:
        asyncio.run(cancelled(server))
