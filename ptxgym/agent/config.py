"""What `agents/<name>/agent.toml` may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, JsonValue, field_validator

from ptxgym.agent.prompting import Context
from ptxgym.verdict import Value

OWN_KEYS = frozenset({"messages", "model", "n", "stream", "stream_options", "tools", "logprobs", "return_token_ids"})
"""Of a request's body; what these say is decided here, not in `[sampling]`."""


class SolutionConfig(Value):
    """An agent that hands in a proven kernel of the task: an anchor of tables. Works in a checkout only."""

    name: str
    kind: Literal["solution"]
    summary: str = ""
    which: Literal["oracle", "naive"]
    """`oracle`: the task's best kernel for the architecture. `naive`: its first, without target instructions."""


class ReplayConfig(Value):
    """An agent that repeats recorded answers."""

    name: str
    kind: Literal["replay"]
    summary: str = ""
    path: Path | None = None
    """A run's folder, of which the trajectory of the same environment, variant and number is repeated, and of the same
    knowledge arm where there are several; or a folder of answers, one a turn in the order of their names: `*.md`, or
    bare kernels `*.cu`."""


class Prices(Value):
    """In US dollars per million tokens."""

    prompt: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)
    """Of prompt tokens that the provider had cached; by default as `prompt`."""
    completion: float = Field(ge=0)
    """Reasoning included."""


class Limits(Value):
    """Patience and restraint."""

    timeout_s: float = Field(default=3600.0, gt=0)
    """Of a whole answer."""
    idle_s: float = Field(default=600.0, gt=0)
    """Without a piece of the answer, or at all where it is not streamed."""
    connect_s: float = Field(default=20.0, gt=0)
    retries: int = Field(default=6, ge=0, le=100)
    """Of a call that failed for no fault of its own."""
    backoff_s: float = Field(default=2.0, gt=0)
    """Before the first retry; doubles each time, with jitter, unless the endpoint names a time."""
    backoff_most_s: float = Field(default=120.0, gt=0)
    retry_after_most_s: float = Field(default=900.0, gt=0)
    """The longest wait that an endpoint may ask for; beyond it the episode ends as `infra`."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Of this agent in this process; by default as many as there are."""


class OpenAIConfig(Value):
    """An agent that asks a model by the chat-completions protocol of any OpenAI-compatible endpoint."""

    name: str
    kind: Literal["openai"]
    summary: str = ""
    context: Context = "full"
    base_url: str
    """Such as `https://api.openai.com/v1` or `http://localhost:8000/v1`."""
    model: str
    """As the endpoint names it."""
    api_key_env: str = ""
    """Name of the environment variable that holds the key; empty where the endpoint wants none."""
    stream: bool = True
    send_seed: bool = False
    """Whether to send a seed, made of the trajectory's and the turn's number."""
    token_trace: bool = False
    """Whether to ask for log probabilities and, as vLLM gives them, token ids."""
    sampling: dict[str, JsonValue] = Field(default_factory=dict)
    """Goes into the body of each request as it stands: `temperature`, `max_completion_tokens`, `reasoning_effort`,
    or whatever else the endpoint takes."""
    prices: Prices | None = None
    limits: Limits = Limits()

    @field_validator("base_url")
    @classmethod
    def _without_secrets(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an http or https address, such as http://localhost:8000/v1")
        if parts.username or parts.password or parts.query:
            raise ValueError("must hold no user, password or query: it is stored with every run; see api_key_env")
        return url.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _a_name(cls, name: str) -> str:
        if name and not (name.isidentifier() and name.isascii() and name.isupper()):
            raise ValueError("must be the name of an environment variable, such as OPENAI_API_KEY, not a key")
        return name

    @field_validator("sampling")
    @classmethod
    def _not_ours(cls, sampling: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(OWN_KEYS & set(sampling)):
            raise ValueError(f"must not set {', '.join(taken)}")
        return sampling


AgentConfig = OpenAIConfig | SolutionConfig | ReplayConfig
KINDS: dict[str, type[AgentConfig]] = {
    "openai": OpenAIConfig,
    "solution": SolutionConfig,
    "replay": ReplayConfig,
}
