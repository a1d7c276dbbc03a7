"""`KernelEnv`: an episode as a Gymnasium environment whose actions are whole kernel files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

from ptxgym.arguments import no_others
from ptxgym.availability import check_evaluator
from ptxgym.content import unknown
from ptxgym.device.cuda.model import Tier
from ptxgym.envs import load_env
from ptxgym.episode import Episode, Turn
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.knowledge import expand, render_knowledge
from ptxgym.reward import load_reward
from ptxgym.spaces import Source
from ptxgym.submission import MAX_SOURCE_BYTES
from ptxgym.task import load_arch
from ptxgym.variants import load_variant
from ptxgym.verdict import Verdict

Observation = dict[str, str | NDArray[np.float32]]

T = TypeVar("T")

PROMPT_BYTES = MAX_SOURCE_BYTES + 196_608
"""A prompt may show a kernel to start from, and a whole knowledge pack."""
MAX_TURNS = 1000

RESET_OPTIONS = ("variant", "turns", "reward", "stop", "workload", "init", "skeleton", "knowledge")
TEXT_OPTIONS = {"variant": "a name", "workload": "a name", "init": "a kernel's text", "skeleton": "a kernel's text"}
LATER_OPTIONS = {"outputs": "variants of a task ask for fewer outputs; `ptxgym list --variants` shows them"}


ARGUMENTS = (
    "variant", "turns", "reward", "stop", "feedback_bytes", "knowledge", "device", "tier", "evaluator", "render_mode",
)  # fmt: skip
ELSEWHERE = {
    "seed": "pass it to reset(seed=...)",
    **{name: f"pass it to reset(options={{{name!r}: ...}})" for name in ("workload", "init", "skeleton")},
    "secret": "pass evaluator=ptxgym.Evaluator(secret=...), or set PTXGYM_SECRET",
    "max_episode_steps": "turns are the length of an episode, as its prompt says; pass turns=...",
    "arch": "it is part of the environment's id",
    "task": "it is part of the environment's id",
}
"""Arguments that are looked for here, and where they belong."""


class KernelEnv(gym.Env[Observation, str]):
    """Write a kernel, read what the compiler, the judge and the device say, write a better one.

    ## Action space
    `Source`: one self-contained CUDA C++ file, at most 256 KiB of UTF-8. Any other text is judged too, and rejected.

    ## Observation space
    | key | space | holds |
    | --- | --- | --- |
    | `prompt` | `Source` | task, signature, contract, budgets, rules, score, knowledge |
    | `feedback` | `Source` | what came of the last submission, cause first |
    | `source` | `Source` | the last submission (cut to the space's bound) |
    | `best_source` | `Source` | the first submission with the best score so far |
    | `score` | `Box(0, 1)` | of the last submission |
    | `best_score` | `Box(0, 1)` | of the episode |
    | `coverage` | `Box(0, 1)` | share of the arithmetic that the last submission did with target instructions |
    | `turns_left` | `Box(0, 1000)` | submissions that remain |

    ## Rewards
    What the environment's preset pays (`rewards/*.toml`): by default the gain of the episode's best score.

    ## Start and end
    `reset(seed=…)` fixes the prompt and the start; the draws of inputs depend on the run's secret alone. `terminated`
    at the last turn or by the stop rule. `truncated` only if the machine failed, with `info["reward_valid"] = False`;
    or by Gymnasium's `TimeLimit`, if `gymnasium.make` is given `max_episode_steps`, of which no prompt knows: pass
    `turns`.

    ## Info
    `verdict` (a `ptxgym.Verdict`), `score`, `terms` (the reward by term), `best_score`, `conditions` (a hash), `turn`,
    `reward_valid`; where the machine failed: `turn`, `best_score`, `reward_valid`, `error`; after `reset`: `turn`,
    `best_score`, `options`.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  (as Gymnasium declares it)

    def __init__(
        self,
        env: str,
        *,
        variant: str | None = None,
        turns: int | None = None,
        reward: str | None = None,
        stop: str | None = None,
        feedback_bytes: int | None = None,
        knowledge: Sequence[str] | None = None,
        device: str = "auto",
        tier: Tier = "standard",
        evaluator: Evaluator | None = None,
        render_mode: str | None = None,
        **others: Any,
    ) -> None:
        """Make the environment `env`; nothing is started before the first step.

        Args:
            env: Plain or pinned id of a file of `envs/`.
            variant: Overrides the variant of the task, such as `d64` (`ptxgym.variants`).
            turns: Overrides the number of turns.
            reward: Overrides the reward preset.
            stop: Overrides the stop rule: `never`, `target_ok` or `speedup:<x>`.
            feedback_bytes: Overrides the cap of each feedback.
            knowledge: Overrides the parts of the architecture's knowledge pack that the prompt holds; `all` expands.
            device: `auto` (a GPU of the task's generation where there is one), `emulator`, `cuda`, or the address of a
                service (`http://host:port`, of `ptxgym serve`).
            tier: How a GPU measures: `rl`, `standard` or `publish`; where kernels are emulated, `standard` alone.
            evaluator: Instead of the one that this process shares; it is not closed with the environment.
            render_mode: `ansi`: `render()` returns the feedback.
            **others: None: what is not known is refused, with a suggestion.

        Raises:
            UnknownNameError: if there is no such environment, task, variant, architecture or reward.
            UsageError: if a value is not acceptable.
        """
        no_others(f"argument of {env}", others, ARGUMENTS, ELSEWHERE)
        chosen: dict[str, Any] = {"variant": variant, "turns": turns, "reward": reward, "stop": stop}
        chosen |= {"feedback_bytes": feedback_bytes, "knowledge": None if knowledge is None else expand(knowledge)}
        self.config = load_env(env).override(**{name: value for name, value in chosen.items() if value is not None})
        load_variant(self.config.task, self.config.variant)
        load_arch(self.config.arch)
        load_reward(self.config.reward)
        render_knowledge(self.config.arch, self.config.knowledge, self.config.task)
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UsageError(f"render_mode must be None or 'ansi', not {render_mode!r}")
        self.render_mode = render_mode
        self._evaluator: Evaluator | None = Evaluator.shared(device, tier) if evaluator is None else evaluator
        check_evaluator(self._evaluator)
        self._evaluator.check_measures(self.config.arch)
        self._episode: Episode | None = None
        self._over = False
        self._feedback = ""
        self.action_space = Source(MAX_SOURCE_BYTES)
        self._texts = {
            "prompt": Source(PROMPT_BYTES),
            "feedback": Source(self.config.feedback_bytes),
            "source": Source(MAX_SOURCE_BYTES),
            "best_source": Source(MAX_SOURCE_BYTES),
        }
        limits = {"score": 1.0, "best_score": 1.0, "coverage": 1.0, "turns_left": float(MAX_TURNS)}
        numbers = {name: Box(0.0, limit, (), np.float32) for name, limit in limits.items()}
        self.observation_space = cast("gym.Space[Observation]", Dict({**self._texts, **numbers}))

    @property
    def episode(self) -> Episode:
        """The episode that was last started.

        Raises:
            ResetNeeded: if there is none.
        """
        if self._episode is None:
            raise ResetNeeded("no episode was started: call reset() first")
        return self._episode

    @property
    def over(self) -> bool:
        """Whether the episode has ended, so that only `reset` goes on."""
        return self._over

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Of `np_random`; the judged inputs never depend on it.
            options: For this episode only: `variant` (of the task, such as `d64`), `turns`, `reward`, `stop`,
                `workload`, `init` (a kernel to start from, whose score is already paid), `skeleton` (a kernel of which
                only marked regions may change), `knowledge` (names of parts, such as `["parameters", "templates"]`).

        Raises:
            UnknownNameError: if there is no such variant, workload or reward; suggests the nearest.
            UsageError: if an option is unknown or its value not acceptable.
            InfrastructureError: if the machine fails while judging `init`.
        """
        super().reset(seed=seed)
        if self._evaluator is None:
            raise UsageError("the environment is closed; make a new one")
        if not isinstance(options, Mapping | None):
            raise UsageError(f"options must be a dict, such as {{'turns': 4}}, not {options!r}")
        options = dict(options or {})
        for name in options:
            if name in LATER_OPTIONS:
                raise UsageError(f"reset option {name!r} is not available: {LATER_OPTIONS[name]}")
            if name not in RESET_OPTIONS:
                raise UsageError(unknown("reset option", name, RESET_OPTIONS))
        for name, what in TEXT_OPTIONS.items():
            if not isinstance(options.get(name, ""), str):
                raise UsageError(f"reset option {name!r} must be {what}, not {type(options[name]).__name__}")
        episode = self._judged(partial(Episode, self.config, self._evaluator, **options))
        self._episode, self._over = episode, False
        self._feedback = episode.opening()
        observation = self._observe(episode.init or "", episode.init_verdict)
        return observation, {"turn": 0, "best_score": episode.best_score, "options": options}

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Judge one kernel file.

        Raises:
            ResetNeeded: if the episode is over or was never started.
            UsageError: if `action` is no `str`.
        """
        if self._over:
            raise ResetNeeded("the episode is over: call reset() before step()")
        try:
            turn = self._judged(partial(self.episode.submit, action))
        except InfrastructureError as error:
            return self._truncate(action, error)
        self._over = turn.done
        self._feedback = turn.feedback
        return self._observe(action, turn.verdict), turn.reward, turn.done, False, _info(turn)

    def render(self) -> str | None:
        """Return the last feedback in mode `ansi`, else None."""
        return self._feedback if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Let go of the evaluator; its processes end with its last user."""
        self._evaluator = None
        self._episode = None

    def _judged(self, work: Callable[[], T]) -> T:
        """Do what judges kernels: here, for as long as it takes."""
        return work()

    def _truncate(
        self, action: str, error: InfrastructureError
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """End the episode because the machine failed: no reward, and the caller is told so."""
        self._over = True
        self._feedback = f"The machine failed, not your kernel; this turn does not count.\n{error}\n"
        info = {
            "turn": len(self.episode.turns),
            "best_score": self.episode.best_score,
            "reward_valid": False,
            "error": f"{type(error).__name__}: {error}",
        }
        return self._observe(action, None), 0.0, False, True, info

    def _observe(self, source: str, verdict: Verdict | None) -> Observation:
        evidence = verdict.evidence if verdict is not None else None
        texts = {
            "prompt": self.episode.prompt(),
            "feedback": self._feedback,
            "source": source,
            "best_source": self.episode.best_source,
        }
        numbers = {
            "score": verdict.score if verdict is not None else 0.0,
            "best_score": self.episode.best_score,
            "coverage": evidence.coverage if evidence is not None else 0.0,
            "turns_left": self.episode.turns_left,
        }
        observation: Observation = {}
        for name, text in texts.items():
            observation[name] = self._texts[name].fit(text)
        for name, number in numbers.items():
            observation[name] = np.array(number, dtype=np.float32)
        return observation


def _info(turn: Turn) -> dict[str, Any]:
    return {
        "verdict": turn.verdict,
        "score": turn.score,
        "terms": dict(turn.terms),
        "best_score": turn.best_score,
        "conditions": turn.verdict.provenance.conditions or "",
        "turn": turn.number,
        "reward_valid": True,
    }
