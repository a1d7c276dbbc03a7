"""What a run leaves behind: one front matter, one line per episode, one line per turn.

A run is a folder: `run.json`, `episodes.jsonl`, `turns.jsonl`. Lines are only ever appended; every line stands alone.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ptxgym.verdict import Value, Verdict

SCHEMA = 1
"""Of all models here; raised when an old reader would misread a new line."""

CANARY = "<canary>"
"""Stands for the canary in prompts that are hashed."""

Role = Literal["system", "user", "assistant"]
EpisodeStatus = Literal["done", "infra", "refused"]
"""`done`: all turns were played, or the stop rule held. `infra`: the machine failed, and no rate counts it.
`refused`: the model would not answer."""


class Message(Value):
    """One message of a conversation, as it was sent."""

    role: Role
    content: str


class Usage(Value):
    """What an answer cost; sums over attempts that were retried."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt's, those that the provider had cached."""
    completion_tokens: int = 0
    """Reasoning included."""
    reasoning_tokens: int = 0
    cost_usd: float | None = None
    """None where no prices are known."""

    @property
    def told(self) -> bool:
        """Whether anybody said what an answer cost; an endpoint need not, and then all is 0 here."""
        return self.cost_usd is not None or self.prompt_tokens + self.completion_tokens > 0

    def __add__(self, other: Usage) -> Usage:
        """Return the sum; a cost that is unknown on either side stays unknown."""
        known = self.cost_usd is not None and other.cost_usd is not None
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cost_usd=self.cost_usd + other.cost_usd if known else None,  # type: ignore[operator]
        )


class TokenTrace(Value):
    """Tokens of an answer, where the client has them."""

    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    completion_logprobs: tuple[float, ...] = ()


class TurnRecord(Value):
    """One turn: what the model read and said, the kernel in it, and what became of that."""

    schema_version: int = SCHEMA
    episode: str
    """`EpisodeRecord.id`."""
    turn: int = Field(ge=1)
    parent_turn: int | None = None
    """The turn whose kernel and feedback the messages show last; None for the first."""
    messages: tuple[Message, ...]
    response: str
    """The whole answer."""
    reasoning: str = ""
    """What the provider gives apart from the answer."""
    finish_reason: str = ""
    """The provider's word: `stop`, `length`, `content_filter` …; `context_length`: the conversation no longer fits."""
    refused: bool = False
    """Whether the model, or a filter of its provider, would not answer."""
    model: str = ""
    """As the provider names what answered."""
    source: str
    """The kernel text that was judged: what `extract` found in the answer, or the answer itself."""
    notes: tuple[str, ...] = ()
    """Of `extract`, such as `several_blocks`."""
    solution: str = ""
    """Name of the task's proven solution that was handed in, such as `gemm/solutions/h100/naive.cu`. Published records
    must not hold an answer: `source` is then empty, the verdict's `source_sha256` says which text it was, and nothing
    quotes it."""
    verdict: Verdict
    feedback: str
    score: float
    reward: float
    terms: dict[str, float]
    best_score: float
    done: bool
    usage: Usage = Usage()
    tokens: TokenTrace | None = None
    started_at: str
    """UTC, ISO 8601."""
    model_s: float = 0.0
    evaluate_s: float = 0.0
    attempts: int = 1
    """Model calls until one was answered."""
    tags: dict[str, str] = Field(default_factory=dict)


class EpisodeRecord(Value):
    """One trajectory of one agent on one environment."""

    schema_version: int = SCHEMA
    id: str
    """Unique in its run, and the same when the run is resumed: `<env>/<variant>/<agent>/<arm>/<trajectory>`."""
    env: str
    """Pinned id."""
    variant: str | None = None
    agent: str
    arm: str
    """Name of the knowledge arm."""
    trajectory: int = Field(ge=0)
    seed: int
    status: EpisodeStatus
    turns: int
    best_score: float
    best_turn: int | None
    """The first turn with the best score; None where no turn was played."""
    usage: Usage = Usage()
    started_at: str
    ended_at: str
    problem: str = ""
    """Why it is `infra` or `refused`."""
    ended: str = ""
    """Why it is `done` before the turns were used up or the stop rule held: the agent had no more answers."""
    tags: dict[str, str] = Field(default_factory=dict)


class RunRecord(Value):
    """Front matter, written before the first episode and never changed."""

    schema_version: int = SCHEMA
    name: str
    created_at: str
    sweep_sha256: str
    """Of the resolved recipe: environments, agents, arms, prompts, sampling, seeds."""
    sweep: dict[str, object]
    """The resolved recipe itself, without secrets."""
    prompts_sha256: dict[str, str]
    """By `<env>/<variant>/<agent>/<arm>`: of the messages before the first turn, roles and templates included, with
    `CANARY` in the place of the canary, which is made of the sweep's hash."""
    device: str
    """`emulator`, or the GPU's name; both where some architectures are emulated."""
    devices: dict[str, str] = Field(default_factory=dict)
    """The same by architecture."""
    versions: dict[str, str]
    """ptxgym, compiler, driver, libraries, revisions of emulator, recorder and judge."""
    conditions_sha256: str
    """Hash of the run's secret, which fixes draws and hidden shapes."""
    canary: str
    """A string that stands in every prompt of the run, so that leaked texts can be found."""
    tags: dict[str, str] = Field(default_factory=dict)


class Remeasurement(Value):
    """A kernel that was chosen for its score, judged once more on draws and a shape that it was not chosen on."""

    schema_version: int = SCHEMA
    episode: str
    turn: int = Field(ge=1)
    epoch: int = Field(ge=1)
    """Of the conditions; the run itself is epoch 0."""
    verdict: Verdict
    measured_at: str
    """UTC, ISO 8601."""
