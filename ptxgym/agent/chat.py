"""An agent that asks a model by chat completions: any OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

from ptxgym.agent import extra
from ptxgym.agent.answer import Answer
from ptxgym.agent.config import Limits, OpenAIConfig
from ptxgym.agent.prompting import Prompting
from ptxgym.agent.protocol import ModelError, Reply, TurnContext
from ptxgym.agent.trouble import BrokenAnswer, FailedCall, Pace, WebPage, failures, understand
from ptxgym.errors import UsageError
from ptxgym.store.records import Message, Usage

_NO_KEY = "none"
"""Sent where an endpoint wants no key: the client insists on one."""


class ChatAgent:
    """Asks `model` at `base_url`; retries what may pass, counts tokens and cost."""

    def __init__(self, config: OpenAIConfig, prompting: Prompting) -> None:
        """Take over a configuration, and the key from the environment.

        Raises:
            UsageError: if the key's variable is not set, or the package openai is missing.
        """
        extra.openai()
        self.config = config
        self.name = config.name
        self.prompting = prompting
        self._endpoint = f"{config.model} at {config.base_url}"
        self._key = os.environ.get(config.api_key_env, "").strip() if config.api_key_env else ""
        self._answered = False
        self._pace = Pace(config.limits.requests_per_minute)
        if config.api_key_env and not self._key:
            raise UsageError(
                f"agent {config.name}: the variable {config.api_key_env} is not set; put the key of {config.base_url} "
                "there, name another variable in api_key_env, or set that to '' where no key is wanted"
            )

    async def reply(self, messages: Sequence[Message], turn: TurnContext, on_text: Callable[[str], None]) -> Reply:
        """Ask the model, again where that may help.

        Raises:
            ModelError: if the endpoint gave no answer in all attempts, or asks to wait for longer than allowed.
            UsageError: if it does not take the key, the model or the request.
        """
        limits = self.config.limits
        body = self._body(messages, turn)
        spent: Usage | None = None
        trouble = FailedCall("")
        for attempt in range(1, limits.retries + 2):
            await self._pace.wait()
            answer = Answer()
            try:
                await self._ask(body, answer, on_text)
            except failures() as error:
                first = turn.number == 1 and not self._answered
                trouble = understand(error, self._endpoint, self._key, self.config.api_key_env, first=first)
            else:
                self._answered = True
                return answer.reply(_sum(spent, answer.usage(self.config.prices)), attempt)
            if (used := answer.usage(self.config.prices)) != Usage():
                spent = _sum(spent, used)
            if isinstance(trouble.outcome, Reply):
                return _charged(trouble.outcome, spent, attempt)
            if isinstance(trouble.outcome, Exception):
                raise trouble.outcome
            if attempt <= limits.retries:
                await self._pause(trouble, attempt, limits, turn.on_trouble)
        raise ModelError(f"{self._endpoint} gave no answer in {limits.retries + 1} attempts; the last: {trouble.why}")

    def describe(self) -> dict[str, Any]:
        """Return the settings, without the key, and the hashes of the templates."""
        return {**self.config.model_dump(mode="json"), "templates": self.prompting.hashes()}

    async def _ask(self, body: dict[str, Any], answer: Answer, on_text: Callable[[str], None]) -> None:
        """Make one call; what comes of it is in `answer`, even where it breaks off."""
        openai, limits = extra.openai(), self.config.limits
        patience = openai.Timeout(limits.idle_s, connect=limits.connect_s)
        client = openai.AsyncOpenAI(
            base_url=self.config.base_url, api_key=self._key or _NO_KEY, timeout=patience, max_retries=0
        )
        async with client, asyncio.timeout(limits.timeout_s):
            came = await client.chat.completions.create(**body)
            if _is_page(came):
                raise WebPage("the answer is a web page, no chat completion")
            if self.config.stream:
                async for chunk in came:
                    for piece in answer.add(chunk):
                        on_text(piece)
            else:
                for piece in answer.add(came):
                    on_text(piece)
        if not answer.finish_reason:
            raise BrokenAnswer(_endless(came, self.config.stream))

    def _body(self, messages: Sequence[Message], turn: TurnContext) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "stream": self.config.stream,
        }
        more: dict[str, Any] = dict(self.config.sampling)
        if self.config.stream:
            body["stream_options"] = {"include_usage": True}
        if self.config.send_seed:
            body["seed"] = (turn.seed * 1000 + turn.number) % 2**31  # some endpoints take 32 bits
        if self.config.token_trace:
            body["logprobs"] = True
            more["return_token_ids"] = True
        return {**body, "extra_body": more}

    async def _pause(
        self, trouble: FailedCall, attempt: int, limits: Limits, on_trouble: Callable[[str], None]
    ) -> None:
        """Wait before the next attempt."""
        doubled_s = min(limits.backoff_most_s, limits.backoff_s * 2.0 ** (attempt - 1))
        pause_s = trouble.after_s if trouble.after_s is not None else doubled_s * random.uniform(0.75, 1.25)
        if pause_s > limits.retry_after_most_s:
            allowed = f"limits.retry_after_most_s allows {limits.retry_after_most_s:g} s"
            raise ModelError(f"{self._endpoint} asks to wait {pause_s:.0f} s, {allowed}: {trouble.why}")
        if trouble.crowded:
            self._pace.hold(pause_s)
        on_trouble(f"attempt {attempt} of {limits.retries + 1} failed, the next in {pause_s:.1f} s: {trouble.why}")
        await asyncio.sleep(pause_s)


def _is_page(came: Any) -> bool:
    """Whether what answered is a web site; the client gives what is no JSON as a text, and streams whatever it is."""
    if isinstance(came, str):
        return came.lstrip().startswith("<")
    headers = getattr(getattr(came, "response", None), "headers", {})
    return str(headers.get("content-type", "")).startswith("text/html")


def _endless(came: Any, streamed: bool) -> str:
    """Say what is wrong with an answer that has no finish reason."""
    if streamed:
        return "the answer has no end (no finish_reason); if the endpoint cannot stream, set stream = false"
    told = getattr(came, "error", None) or f"it begins {str(came)[:80]!r}"
    return f"the answer is no chat completion: {told}"


def _sum(spent: Usage | None, used: Usage) -> Usage:
    return used if spent is None else spent + used


def _charged(reply: Reply, spent: Usage | None, attempts: int) -> Reply:
    """Return a reply that stands for a refused call, with what the attempts before it used."""
    free = Usage(cost_usd=0.0)
    return Reply(
        reply.text, finish_reason=reply.finish_reason, refused=reply.refused, usage=spent or free, attempts=attempts
    )
