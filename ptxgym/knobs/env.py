"""`KnobEnv`: an episode in which an action turns the knobs of a kernel template, and all that is seen are numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.spaces import Box, MultiDiscrete
from numpy.typing import NDArray

from ptxgym.arguments import whole_number
from ptxgym.availability import check_evaluator
from ptxgym.device.cuda.model import Tier
from ptxgym.episode import Episode, Turn
from ptxgym.errors import InfrastructureError, ToolchainError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.knobs.features import features, ladder, names
from ptxgym.knobs.template import KnobTemplate, load_template
from ptxgym.verdict import Verdict

Numbers = NDArray[np.float32]
Action = NDArray[np.int64]


class KnobEnv(gym.Env[Numbers, Action]):
    """Turn the knobs of a kernel template, see as numbers what came of it, turn them again.

    ## Action space
    `MultiDiscrete`: the number of a choice for each knob.

    ## Observation space
    `Box(-1, 1)`, float32 [feature]: the last choices one-hot, stage and status of its verdict one-hot, findings by
    kind, error of the worst output in decades above its budget, closeness, coverage, speed-up, scores, turns left.
    `feature_names` says which number is what. Before the first turn all but `turns_left` are 0.

    ## Rewards
    What the reward preset pays, and on top, with `ladder`, what the best turn has gained in how far it came: scores are
    0 for all that does not run, so that a policy sees nothing of a kernel that at least compiles.

    ## Start and end
    An episode has `turns` turns, and ends early by the environment's stop rule alone. `truncated` only if the machine
    failed, with `info["reward_valid"] = False`.

    ## Info
    After a step: `setting`, `verdict`, `score`, `terms`, `best_score`, `turn`, `reward_valid`; where the machine
    failed: `setting`, `turn`, `best_score`, `reward_valid`, `error`.
    """

    metadata = {"render_modes": []}  # noqa: RUF012  (as Gymnasium declares it)

    def __init__(
        self,
        template: str | KnobTemplate,
        *,
        turns: int = 1,
        reward: str = "shaped",
        ladder: float = 0.0,
        device: str = "auto",
        tier: Tier = "standard",
        evaluator: Evaluator | None = None,
        pauses_s: Sequence[float] = (),
    ) -> None:
        """Make the environment; nothing is started before the first step.

        Args:
            template: One, its name, or a file (`ptxgym.knobs.load_template`).
            turns: Settings that an episode may try.
            reward: Preset; what it pays is a function of scores alone.
            ladder: What a kernel that was judged earns on top, one that did not come so far by its share.
            device: `auto`, `emulator`, `cuda`, or the address of a service.
            tier: How a GPU measures.
            evaluator: Instead of the one that this process shares; it is not closed with the environment.
            pauses_s: Where the machine failed at a turn, so long is waited before each further try; by default the
                first failure truncates.

        Raises:
            UnknownNameError: if there is no such template, environment, variant or reward.
            ContentError: if the template is wrong.
            UsageError: if a value is not acceptable.
        """
        self.template = template if isinstance(template, KnobTemplate) else load_template(template)
        if not 0 <= ladder < float("inf"):
            raise UsageError(f"ladder must be 0 or more, not {ladder}")
        if not all(0 <= pause_s < float("inf") for pause_s in pauses_s):
            raise UsageError(f"pauses_s must be seconds, 0 or more, not {list(pauses_s)}")
        self._ladder, self._pauses_s = ladder, tuple(pauses_s)
        evaluator = Evaluator.shared(device, tier) if evaluator is None else evaluator
        check_evaluator(evaluator)
        self._evaluator: Evaluator | None = evaluator
        self._turns, self._reward = whole_number("turns", turns, 1), reward
        self._episode = self._begin(evaluator)  # refuses here what an episode does not take
        evaluator.check_measures(self._episode.config.arch)
        self._over = True
        self._best_ladder = 0.0
        self.feature_names = names(self.template)
        self.action_space = MultiDiscrete(list(self.template.sizes))
        self.observation_space = Box(-1.0, 1.0, (len(self.feature_names),), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Numbers, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Of `np_random`; neither the judged inputs nor the first observation depend on it.
            options: None are known.

        Raises:
            UsageError: if the environment is closed, or an option is given.
        """
        super().reset(seed=seed)
        if self._evaluator is None:
            raise UsageError("the environment is closed; make a new one")
        if options:
            raise UsageError(f"KnobEnv takes no reset options, such as {next(iter(options))!r}; pass it to KnobEnv")
        self._episode, self._over, self._best_ladder = self._begin(self._evaluator), False, 0.0
        return features(self.template, None, None, 0.0, 1.0), {"turn": 0, "best_score": 0.0}

    def step(self, action: Action) -> tuple[Numbers, float, bool, bool, dict[str, Any]]:
        """Judge the kernel with these choices.

        Args:
            action: int [knob].

        Raises:
            ResetNeeded: if the episode is over or was never started.
            InvalidAction: if the action space does not contain `action`.
        """
        if self._over:
            raise ResetNeeded("no episode is under way: call reset() before step()")
        if not self.action_space.contains(action):
            raise InvalidAction(f"{action!r} is not in {self.action_space}, a choice for each of {self.template.sizes}")
        chosen = tuple(int(choice) for choice in action)
        info: dict[str, Any] = {"setting": self.template.setting(chosen)}
        try:
            turn = self._judged(self.template.render(chosen))
        except InfrastructureError as error:
            self._over = True
            info |= {"turn": len(self._episode.turns), "best_score": self._episode.best_score}
            info |= {"reward_valid": False, "error": f"{type(error).__name__}: {error}"}
            return self._observe(chosen, None), 0.0, False, True, info
        self._over = turn.done
        reached = max(self._best_ladder, ladder(turn.verdict))
        gained, self._best_ladder = self._ladder * (reached - self._best_ladder), reached
        terms = {**turn.terms, "ladder": gained} if self._ladder else turn.terms
        info |= {"verdict": turn.verdict, "score": turn.score, "terms": terms, "best_score": turn.best_score}
        info |= {"turn": turn.number, "reward_valid": True}
        return self._observe(chosen, turn.verdict), turn.reward + gained, turn.done, False, info

    def close(self) -> None:
        """Let go of the evaluator; its processes end with its last user."""
        self._evaluator = None

    def _begin(self, evaluator: Evaluator) -> Episode:
        return Episode(
            self.template.env, evaluator, variant=self.template.variant, turns=self._turns, reward=self._reward
        )

    def _judged(self, text: str) -> Turn:
        """Take a turn; where the machine failed, again after each pause."""
        for pause_s in self._pauses_s:
            try:
                return self._episode.submit(text)
            except ToolchainError:  # which no waiting mends
                raise
            except InfrastructureError:  # the turn does not count
                time.sleep(pause_s)
        return self._episode.submit(text)

    def _observe(self, chosen: tuple[int, ...], verdict: Verdict | None) -> Numbers:
        left = self._episode.turns_left / self._turns
        return features(self.template, chosen, verdict, self._episode.best_score, left)
