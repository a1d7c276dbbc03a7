"""`KernelVectorEnv`: many episodes at once over the evaluation service, as one Gymnasium vector environment.

`gym.make_vec(id, num_envs=n)` makes it. Order, seeds and autoreset are those of `SyncVectorEnv`, whose code collects
what this class has begun: every sub-environment steps on a thread of its own, and waits there for its verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from ptxgym.cluster.service import EvaluationService
from ptxgym.cluster.wants import asking
from ptxgym.device.cuda.model import Tier
from ptxgym.env import KernelEnv, Observation
from ptxgym.errors import UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.judging import Judging
from ptxgym.serve.connection import is_address
from ptxgym.threads import started

T = TypeVar("T")
_Result = Any
"""What a step or a reset returns."""


class KernelVectorEnv(SyncVectorEnv):
    """`num_envs` environments of one id that share builds, verdicts, CPU cores and GPUs.

    Spaces are those of `KernelEnv`, batched: observations hold tuples of texts and arrays of numbers. Equal texts are
    evaluated once. An evaluation that takes longer than `deadline_s` truncates its own environment, with
    `reward_valid` False in its info, and holds up the others no longer than that.

    Example:
        >>> envs = gym.make_vec("PTX-Gemm-H100", num_envs=8)                   # doctest: +SKIP
        >>> observations, infos = envs.reset(seed=0)                           # doctest: +SKIP
        >>> observations, rewards, terminated, truncated, infos = envs.step(texts)  # doctest: +SKIP
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        env: str,
        device: str = "auto",
        tier: Tier = "standard",
        evaluator: Evaluator | None = None,
        deadline_s: float | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **overrides: Any,
    ) -> None:
        """Make the environments; workers start with the first step.

        Args:
            num_envs: How many.
            env: Plain or pinned id of a file of `envs/`.
            device: `auto`, `emulator`, `cuda`, or the address of a service (`http://host:port`).
            tier: How a GPU measures.
            evaluator: Instead of this process's local service: an `EvaluationService` on Ray, or a plain `Evaluator`.
            deadline_s: How long one evaluation is waited for, queues included; by default the service's own. A plain
                `Evaluator` has none, and cannot end an evaluation: one that is overdue goes on for nobody.
            autoreset_mode: As Gymnasium has it: `NextStep`, `SameStep` or `Disabled`.
            **overrides: Of `KernelEnv`, such as `turns` or `reward`, for all environments.

        Raises:
            UnknownNameError: if there is no such environment, variant or reward.
            UsageError: if a value is not acceptable.
        """
        if num_envs < 1:
            raise UsageError(f"num_envs must be at least 1, not {num_envs}")
        if deadline_s is not None and not deadline_s > 0:
            raise UsageError(f"deadline_s must be positive, not {deadline_s}")
        service = evaluator if evaluator is not None else _shared(device, tier)
        self.evaluator: Evaluator | None = service
        limited = deadline_s is not None and not getattr(service, "queues", False)
        places = Judging(num_envs, deadline_s) if limited else None  # as many as can be used: all begin at once

        def make() -> _Ahead:
            return _Ahead(_Limited(places, env, evaluator=service, **overrides), deadline_s)

        super().__init__([make] * num_envs, autoreset_mode=autoreset_mode)
        self.env_fns = ()  # they would hold the service beyond `close`

    def step(self, actions: Any) -> Any:
        """Judge one text per environment; see `KernelEnv.step`.

        Environments whose episode was over are reset instead, where Gymnasium's autoreset mode says so. A step that
        is interrupted leaves turns behind that were judged and that nobody has seen; the next step or reset waits for
        them and goes on from there, with a new episode where they ended one.

        Raises:
            UsageError: if there is not one text for each environment; nothing is judged then.
        """
        self._settle()
        texts = self._texts(actions)
        for env, text in zip(self._ahead, texts, strict=True):
            env.begin(text, reset=self._resets(env))
        try:
            return super().step(texts)
        except Exception:  # of any kind, and raised on; an interrupt does not wait, the next call does
            self._settle()
            raise

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environments, or those of a `reset_mask`; see `KernelEnv.reset`."""
        self._settle()
        return super().reset(seed=seed, options=options)

    @property
    def _ahead(self) -> list[_Ahead]:
        return list(self.envs)  # type: ignore[arg-type]  # what `make` made

    def _resets(self, env: _Ahead) -> bool:
        """Whether the next step resets an environment, and does not look at its text."""
        return self.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP and env.over

    def _settle(self) -> None:
        """Wait for what a call left behind that did not come to its end, and agree with the environments about it."""
        for env in self._ahead:
            env.settle()
        if self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP:
            for env in self._ahead:
                if env.over:
                    env.reset()
        self._autoreset_envs = np.array([env.over for env in self._ahead])

    def _texts(self, actions: Any) -> tuple[str, ...]:
        """Return the texts by environment."""
        wanted = f"step takes one text for each of the {self.num_envs} environments, in their order"
        if isinstance(actions, str | bytes) or not isinstance(actions, Iterable):
            raise UsageError(f"{wanted}, not a single {type(actions).__name__}: pass a list or tuple of texts")
        texts = tuple(iterate(self.action_space, actions))
        if len(texts) != self.num_envs:
            raise UsageError(
                f'{wanted}, and got {len(texts)}: pass a text for those as well whose episode is over (such as ""); '
                "it is not looked at while they reset"
            )
        for number, (env, text) in enumerate(zip(self._ahead, texts, strict=True)):
            if not isinstance(text, str) and not self._resets(env):
                raise UsageError(f"a submission is a str, not {type(text).__name__} (environment {number})")
        return texts

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments, and let go of the service."""
        super().close_extras(**kwargs)
        self.evaluator = None


class _Limited(KernelEnv):
    """Waits for its evaluations no longer than its places allow; None where the evaluator itself sees to that."""

    def __init__(self, places: Judging | None, env: str, **overrides: Any) -> None:
        super().__init__(env, **overrides)
        self._places = places

    def _judged(self, work: Callable[[], T]) -> T:
        return work() if self._places is None else self._places.call(work)


class _Ahead(gym.Wrapper[Observation, str, Observation, str]):
    """Steps and resets on a thread of its own, before it is asked for what comes of it."""

    def __init__(self, env: KernelEnv, deadline_s: float | None) -> None:
        super().__init__(env)
        self._kernel_env = env
        self._deadline_s = deadline_s
        self._begun: Future[_Result] | None = None

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self._kernel_env.over

    def begin(self, action: str, *, reset: bool) -> None:
        """Begin a step, or the reset that comes in its place."""
        self._begun = started(lambda: self._reset(None, None) if reset else self._step(action), "ptxgym-env")

    def settle(self) -> None:
        """Wait for what was begun, whatever came of it; where that is interrupted, it is still begun."""
        if self._begun is not None:
            self._begun.exception()
            self._begun = None

    def step(self, action: str) -> Any:
        """Return what came of the step that was begun."""
        return self._step(action) if (begun := self._ended()) is None else begun.result()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Return what came of the reset that was begun; reset here where none was."""
        return self._reset(seed, options) if (begun := self._ended()) is None else begun.result()

    def _ended(self) -> Future[_Result] | None:
        """Return what was begun, once it has ended."""
        begun = self._begun
        self.settle()
        return begun

    def _step(self, action: str) -> _Result:
        started = bool(self._kernel_env.episode.turns)
        with asking(started=started, deadline_s=self._deadline_s):
            return self._kernel_env.step(action)

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> _Result:
        with asking(deadline_s=self._deadline_s):
            return self._kernel_env.reset(seed=seed, options=options)


def _shared(device: str, tier: Tier) -> Evaluator:
    """Return what all environments of this process share for a device."""
    return Evaluator.shared(device, tier) if is_address(device) else EvaluationService.shared(device, tier)
