"""A chat completion → `Reply`: pieces as they come, reasoning told apart, tokens and cost counted.

Chat completions are OpenAI's (platform.openai.com/docs/api-reference/chat). Beyond them: `reasoning_content` (DeepSeek,
vLLM, SGLang) or `reasoning` (OpenRouter) beside the content, and vLLM's `return_token_ids`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ptxgym.agent.config import Prices
from ptxgym.agent.protocol import Reply
from ptxgym.store.records import TokenTrace, Usage

_THINK, _END_THINK = "<think>", "</think>"


class Answer:
    """Collects one completion, streamed or whole."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._prompt_ids: list[int] = []
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._usage: Any = None
        self._model = ""
        self.finish_reason = ""
        """Empty as long as the completion has not come to its end."""

    def add(self, part: Any) -> Iterator[str]:
        """Take a chunk of a stream, or a whole completion; yield its pieces of reasoning, refusal and text."""
        self._usage = getattr(part, "usage", None) or self._usage
        self._model = getattr(part, "model", None) or self._model
        self._prompt_ids.extend(getattr(part, "prompt_token_ids", None) or ())
        for choice in (getattr(part, "choices", None) or ())[:1]:
            self.finish_reason = getattr(choice, "finish_reason", None) or self.finish_reason
            self._ids.extend(getattr(choice, "token_ids", None) or ())
            logprobs = getattr(choice, "logprobs", None)
            self._logprobs.extend(token.logprob for token in getattr(logprobs, "content", None) or ())
            said = getattr(choice, "delta", None) or getattr(choice, "message", None)
            for kept, names in (
                (self._reasoning, ("reasoning_content", "reasoning")),
                (self._refusal, ("refusal",)),
                (self._text, ("content",)),
            ):
                piece = next((value for name in names if isinstance(value := getattr(said, name, None), str)), "")
                if piece:
                    kept.append(piece)
                    yield piece

    def usage(self, prices: Prices | None) -> Usage:
        """Return what the provider counted, and what that costs; zeros and no cost where it counted nothing."""
        if self._usage is None:
            return Usage()
        prompt, completion = _count(self._usage, "prompt_tokens"), _count(self._usage, "completion_tokens")
        cached = _detail(self._usage, "prompt_tokens_details", "cached_tokens")
        cost = None
        if prices is not None:
            cached_price = prices.prompt if prices.cached is None else prices.cached
            cost = ((prompt - cached) * prices.prompt + cached * cached_price + completion * prices.completion) / 1e6
        return Usage(
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
            reasoning_tokens=_detail(self._usage, "completion_tokens_details", "reasoning_tokens"),
            cost_usd=cost,
        )

    def reply(self, usage: Usage, attempts: int) -> Reply:
        """Return the completion as a reply."""
        thought, text = split_thinking(_joined(self._text))
        refusal = _joined(self._refusal)
        trace = TokenTrace(
            prompt_ids=tuple(self._prompt_ids),
            completion_ids=tuple(self._ids),
            completion_logprobs=tuple(self._logprobs),
        )
        return Reply(
            text or refusal,
            reasoning=_joined(self._reasoning) + thought,
            finish_reason=self.finish_reason,
            model=self._model,
            usage=usage,
            tokens=trace if trace != TokenTrace() else None,
            attempts=attempts,
            refused=bool(refusal) or self.finish_reason == "content_filter",
        )


def split_thinking(text: str) -> tuple[str, str]:
    """Split reasoning in `<think>` tags, as servers without a reasoning parser leave it, from the answer behind it.

    Chat templates may open the tag within the prompt, so that only its end is in the answer.
    """
    opened = text.lstrip().startswith(_THINK)
    thought, closed, rest = text.partition(_END_THINK)
    if closed and (opened or _THINK not in thought):
        return thought.lstrip().removeprefix(_THINK).strip("\n"), rest.lstrip("\n")
    return (text.lstrip().removeprefix(_THINK).strip("\n"), "") if opened else ("", text)


def _joined(pieces: list[str]) -> str:
    """Join pieces, also where one ends within a character (half of a UTF-16 pair); half a character becomes U+FFFD."""
    return "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _detail(usage: Any, group: str, name: str) -> int:
    return _count(getattr(usage, group, None), name)


def _count(usage: Any, name: str) -> int:
    """Return a number of tokens; the client sets no attribute that the endpoint left out."""
    return getattr(usage, name, None) or 0
