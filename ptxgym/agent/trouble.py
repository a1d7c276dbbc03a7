"""What to do about a call that failed: try again, and when; give up; or take the failure for the model's answer."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ptxgym.agent import extra
from ptxgym.agent.protocol import ModelError, Reply
from ptxgym.errors import UsageError

CONTEXT_LENGTH = "context_length"
"""`Reply.finish_reason` of a conversation that no longer fits the model."""

_TOO_LONG = re.compile(
    r"context (length|window|size)|maximum context|prompt is too long|too many (input )?tokens", re.I
)
_FILTERED = frozenset({"content_filter", "content_policy_violation", "invalid_prompt"})
_PASSING = frozenset({408, 409, 425, 429})
"""Statuses below 500 that another try may not meet."""


class BrokenAnswer(Exception):
    """Raised when an endpoint's answer is no complete completion."""


class WebPage(BrokenAnswer):
    """Raised when what answers is a web site, not an API."""


@dataclass(frozen=True)
class FailedCall:
    """A failed call."""

    why: str
    """In a sentence, without the key."""
    outcome: Reply | Exception | None = None
    """What the turn ends with; None: try again."""
    after_s: float | None = None
    """The wait that the endpoint asks for."""
    crowded: bool = False
    """Whether the endpoint has too much to do: other calls wait, too."""


class Pace:
    """Spaces the calls of one agent, and lets all of them wait while its endpoint asks for it."""

    def __init__(self, requests_per_minute: float | None) -> None:
        self._interval_s = 60 / requests_per_minute if requests_per_minute else 0.0
        self._next_s = self._held_s = 0.0

    async def wait(self) -> None:
        """Wait for this call's turn."""
        mine_s = max(time.monotonic(), self._next_s)
        self._next_s = mine_s + self._interval_s
        while (wait_s := max(mine_s, self._held_s) - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)

    def hold(self, pause_s: float) -> None:
        """Let no call begin for so long."""
        self._held_s = max(self._held_s, time.monotonic() + pause_s)


def failures() -> tuple[type[Exception], ...]:
    """Return what a call may raise: the client's errors, and those of the transport while an answer is streamed."""
    transports = (sys.modules[name].TransportError for name in ("httpx", "httpx2") if name in sys.modules)
    return (
        extra.openai().APIError,
        BrokenAnswer,
        TimeoutError,
        json.JSONDecodeError,
        UnicodeDecodeError,
        *transports,
    )


def understand(error: Exception, endpoint: str, key: str, key_env: str, *, first: bool) -> FailedCall:
    """Say what to do about a failed call.

    Args:
        error: One of `failures()`.
        endpoint: Base URL and model, for messages.
        key: Cut out of messages.
        key_env: The variable that holds it.
        first: Whether the endpoint has not answered yet: what it refuses now is a wrong setting, later it is this one
            request.
    """
    openai = extra.openai()
    message = _told(error, key)
    if isinstance(error, WebPage) and first:
        hint = "check base_url, which of most APIs ends in /v1"
        return FailedCall(message, UsageError(f"{endpoint}: {message}; {hint}"))
    if isinstance(error, openai.APIStatusError):
        return _refused(error, message, endpoint, key_env, first)
    if isinstance(error, openai.APIConnectionError | TimeoutError) and not message:
        message = "no answer in time"
    body = error.body if isinstance(error, openai.APIError) else None
    if _is_too_long(body, message) and not first:
        return FailedCall(message, Reply("", finish_reason=CONTEXT_LENGTH))
    return FailedCall(f"{type(error).__name__}: {message}")


def _refused(error: Any, message: str, endpoint: str, key_env: str, first: bool) -> FailedCall:
    """Read an HTTP status."""
    status, code = error.status_code, str(_field(error.body, "code") or _field(error.body, "type") or "")
    why = f"HTTP {status}: {message}"
    if code == "insufficient_quota":
        return FailedCall(why, ModelError(f"{endpoint}: the account has no credit left: {message}"))
    if status in _PASSING or status >= 500:
        crowded = status in (429, 503)
        return FailedCall(why, after_s=retry_after_s(error.response.headers), crowded=crowded)
    if status in (401, 403):
        hint = f"check the key in {key_env}" if key_env else "set api_key_env to the variable that holds the key"
        return FailedCall(why, UsageError(f"{endpoint} let nobody in (HTTP {status}: {message}); {hint}"))
    if code in _FILTERED:
        return FailedCall(why, Reply("", finish_reason="content_filter", refused=True))
    too_long = status == 413 or _is_too_long(error.body, message)
    if not first:
        lost = (
            Reply("", finish_reason=CONTEXT_LENGTH)
            if too_long
            else ModelError(f"{endpoint} refused one request: {why}")
        )
        return FailedCall(why, lost)
    if too_long:
        hint = "lower sampling.max_completion_tokens, give less knowledge, or take a model that reads more"
        return FailedCall(why, UsageError(f"{endpoint} cannot take even the first prompt ({message}); {hint}"))
    if status == 404:
        return FailedCall(why, UsageError(f"{endpoint} was not found (HTTP 404: {message}); check base_url and model"))
    return FailedCall(why, UsageError(f"{endpoint} refused the request (HTTP {status}: {message}); see [sampling]"))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait that headers ask for, in seconds: `Retry-After` (RFC 9110 10.2.3) or `retry-after-ms`."""
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        if re.fullmatch(r"\d+(\.\d+)?", value):
            return float(value) * unit_s
        try:
            then = parsedate_to_datetime(value)
        except (ValueError, OverflowError):  # the latter for years of many digits
            continue
        aware = then if then.tzinfo else then.replace(tzinfo=UTC)
        return max(0.0, (aware - datetime.now(UTC)).total_seconds())
    return None


def _is_too_long(body: object, message: str) -> bool:
    return _field(body, "code") == "context_length_exceeded" or _TOO_LONG.search(message) is not None


def _told(error: Exception, key: str) -> str:
    """Return what the endpoint said, in a line, without the key."""
    said = _field(getattr(error, "body", None), "message") or getattr(error, "message", None) or str(error)
    line = " ".join(str(said).split())
    if error.__cause__ is not None and str(error.__cause__) not in line:
        line = f"{line} ({' '.join(str(error.__cause__).split())})"
    if key:
        line = line.replace(key, "…")
    return line if len(line) <= 500 else f"{line[:499]}…"


def _field(body: object, name: str) -> object:
    return body.get(name) if isinstance(body, Mapping) else None
