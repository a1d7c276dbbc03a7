"""OpenEnv: an environment that a server offers to trainers elsewhere, one session per rollout.

Where the machine keeps failing, the observation ends the episode with `reward` None and `metadata["reward_valid"]`
False; a trainer drops such a rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptxgym.adapters.rollout import Rollout, dataset_rows
from ptxgym.envs import env_names
from ptxgym.episode import Turn
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.extras import missing
from ptxgym.variants import SPLITS

try:
    from openenv.core.env_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
except ImportError as error:
    raise missing("openenv", "this adapter needs", "openenv") from error


class KernelAction(Action):  # type: ignore[misc]  # the library is untyped
    """A model's answer."""

    answer: str
    """The whole answer, the kernel file in a fenced block."""
    cut_off: bool = False
    """Whether the answer is known to have reached its limit."""


class KernelObservation(Observation):  # type: ignore[misc]
    """What the model reads next."""

    text: str
    """The task after `reset`, feedback after `step`."""


class KernelState(State):  # type: ignore[misc]
    """Where a session stands."""

    env: str = ""
    variant: str = ""
    best_score: float = 0.0
    turns_left: int = 0


class KernelEnvironment(Environment[KernelAction, KernelObservation, KernelState]):  # type: ignore[misc]
    """A session; all sessions of a process share one evaluator."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, evaluator: Evaluator | None = None) -> None:
        """Make a session; it starts with `reset`."""
        super().__init__()
        self._evaluator = evaluator if evaluator is not None else Evaluator.shared()
        self._rollout: Rollout | None = None
        self._id: str | None = None

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        env: str | None = None,
        options: dict[str, Any] | None = None,
        **ignored: Any,
    ) -> KernelObservation:
        """Begin the episode of a row: `env`, an id, and `options`. `seed` changes nothing: draws are the evaluator's.

        Raises:
            UsageError: if `env` is missing or unknown, or an option is not acceptable.
        """
        self._id, self._rollout = episode_id, None
        try:
            self._rollout = Rollout.of_row({"env": env, "options": options}, self._evaluator)
        except InfrastructureError as error:
            return _lost(error)
        return KernelObservation(text=self._rollout.opening(), metadata={"reward_valid": True})

    def step(self, action: KernelAction, timeout_s: float | None = None, **ignored: Any) -> KernelObservation:
        """Judge an answer. `timeout_s` changes nothing: a submission's limits are the task's.

        Raises:
            UsageError: if there is no episode, or it is over.
        """
        try:
            return self._shown(self._playing().answer(action.answer, cut_off=action.cut_off))
        except InfrastructureError as error:
            return _lost(error)

    async def step_async(
        self, action: KernelAction, timeout_s: float | None = None, **ignored: Any
    ) -> KernelObservation:
        """Judge an answer without blocking the server; see `step`."""
        try:
            return self._shown(await self._playing().aanswer(action.answer, cut_off=action.cut_off))
        except InfrastructureError as error:
            return _lost(error)

    @property
    def state(self) -> KernelState:
        """Where the session stands."""
        if self._rollout is None:
            return KernelState(episode_id=self._id)
        episode = self._rollout.episode
        return KernelState(
            episode_id=self._id,
            step_count=len(episode.turns),
            env=episode.config.name,
            variant=episode.config.variant,
            best_score=episode.best_score,
            turns_left=0 if self._rollout.lost else episode.turns_left,
        )

    def get_metadata(self) -> EnvironmentMetadata:
        """Say what this is."""
        return EnvironmentMetadata(
            name="ptxgym", description=f"GPU kernels in CUDA C++ with inline PTX: {', '.join(env_names())}"
        )

    def list_splits(self) -> list[str]:
        """Return the names of splits."""
        return list(SPLITS)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """Return what `reset` takes for each task of a split."""
        return [{"env": row["env"], "options": row["options"]} for row in dataset_rows(split)]

    def num_tasks(self, split: str) -> int:
        """Return the number of tasks of a split."""
        return len(self.list_tasks(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """Return what `reset` takes for one task of a split."""
        return self.list_tasks(split)[index]

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> Sequence[dict[str, Any]]:
        """Return what `reset` takes for some tasks of a split, as a slice does."""
        return self.list_tasks(split)[start:stop]

    def _playing(self) -> Rollout:
        if self._rollout is None:
            raise UsageError("there is no episode; reset the environment with env and options first")
        return self._rollout

    def _shown(self, turn: Turn) -> KernelObservation:
        origin, rollout = turn.verdict.provenance, self._playing()
        about = {
            "reward_valid": True,
            "status": str(turn.verdict.status),
            "code": turn.verdict.code,
            "score": turn.score,
            "terms": turn.terms,
            "conditions": origin.conditions,
            "device": origin.device,
            "tier": origin.tier,
            "metrics": rollout.metrics,
        }
        return KernelObservation(text=turn.feedback, reward=turn.reward, done=turn.done, metadata=about)


def _lost(error: InfrastructureError) -> KernelObservation:
    about = {"reward_valid": False, "problem": f"{type(error).__name__}: {error}"}
    return KernelObservation(
        text="The machine failed; this rollout has no reward.", reward=None, done=True, metadata=about
    )


def make_app(evaluator: Evaluator | None = None, max_sessions: int = 64) -> Any:
    """Return the FastAPI application that serves the environment, for uvicorn.

    Args:
        evaluator: Shared by all sessions; by default that of the process.
        max_sessions: Rollouts that may be open at once.
    """
    shared = evaluator if evaluator is not None else Evaluator.shared()
    return create_app(
        lambda: KernelEnvironment(shared),
        KernelAction,
        KernelObservation,
        env_name="ptxgym",
        max_concurrent_envs=max_sessions,
    )
