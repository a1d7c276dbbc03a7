"""An episode as trainers see it: answers in, feedback out, and one reward, or none where the machine failed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from ptxgym import judging
from ptxgym.adapters.group import Member
from ptxgym.agent.loop import JUDGE_PAUSES_S
from ptxgym.episode import Episode, Turn
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.reward import bounds, load_reward, terms
from ptxgym.rows import task_rows

T = TypeVar("T")

_SETTINGS = frozenset(
    {"variant", "turns", "reward", "stop", "feedback_bytes", "knowledge", "workload", "init", "skeleton"}
)


class Rollout:
    """One episode, played once."""

    def __init__(self, episode: Episode) -> None:
        """Begin; `episode` has not yet begun."""
        self.episode = episode
        self.lost = ""
        """Why the machine could not judge this rollout; empty as long as it could."""
        self._policies: tuple[str, ...] = ()
        self._rules = _rules(episode)

    @classmethod
    def of_row(
        cls,
        row: Mapping[str, Any],
        evaluator: Evaluator | None = None,
        **settings: Any,
    ) -> Rollout:
        """Begin the episode that a row of a data set asks for.

        Args:
            row: `env`, an id; `options`, what `Episode` takes, such as `{"variant": "d64"}`. An option that is None
                counts as left out (data sets in columns fill up with it). Anything else in the row is ignored.
            evaluator: Shared by all rollouts of a process; by default that of the process.
            settings: What `Episode` takes, for all rows; those of the row win.

        Raises:
            UsageError: if the row has no environment, or an option is unknown or not acceptable.
            InfrastructureError: if the machine fails while judging `init`.
        """
        begin, judges = _beginning(row, evaluator, settings)
        return cls(_persistently(evaluator, begin) if judges else begin())

    @classmethod
    async def aof_row(cls, row: Mapping[str, Any], evaluator: Evaluator | None = None, **settings: Any) -> Rollout:
        """Begin the episode that a row asks for without blocking the event loop; see `of_row`."""
        begin, judges = _beginning(row, evaluator, settings)
        return cls(await (_apersistently(evaluator, begin) if judges else asyncio.to_thread(begin)))

    @property
    def done(self) -> bool:
        """Whether no further answer is taken."""
        return bool(self.lost) or self.episode.done

    @property
    def reward(self) -> float | None:
        """What all turns so far earned, with what a preset that pays at the end owes; None where the machine failed."""
        if self.lost:
            return None
        return sum(turn.reward for turn in self.episode.turns) + self.episode.due

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers beside the reward, for a trainer's log; of a lost rollout, only that it is lost."""
        turns = self.episode.turns
        if self.lost:
            return {"lost": 1.0}
        last = turns[-1].verdict if turns else None
        return {
            "lost": 0.0,
            "turns": float(len(turns)),
            "best_score": self.episode.best_score,
            "correct": float(any(turn.verdict.status == "ok" for turn in turns)),
            "target_ok": float(any(turn.verdict.evidence and turn.verdict.evidence.target_ok for turn in turns)),
            "last_score": last.score if last else 0.0,
        }

    @property
    def member(self) -> Member:
        """This rollout as one of its group."""
        config, found = self.episode.config, set()
        for turn in self.episode.turns:
            origin = turn.verdict.provenance
            known = {"conditions": origin.conditions, "device": origin.device, "tier": origin.tier}
            found |= {(name, value) for name, value in known.items() if value is not None}
        return Member(
            task=f"{config.name}/{config.variant}",
            texts=tuple(turn.source for turn in self.episode.turns),
            reward=self.reward,
            circumstances=frozenset(found),
            policies=self._policies,
            noise=self._noise(),
            rules=self._rules,
        )

    def opening(self) -> str:
        """Return what the model reads first."""
        return "\n".join(filter(None, (self.episode.prompt(), self.episode.opening())))

    def answer(self, text: str, *, cut_off: bool = False, policy: str = "") -> Turn:
        """Judge a model's answer; repeat that where the machine fails.

        Args:
            text: The whole answer, the kernel file in a fenced block.
            cut_off: Whether the answer is known to have reached its limit.
            policy: Which version of the policy wrote it, where the trainer knows.

        Raises:
            UsageError: if the rollout is over.
            InfrastructureError: if the machine keeps failing, or the evaluation is not over by its deadline; the
                rollout is then `lost`.
        """
        self._check_open()
        with _losing(self):
            turn = _persistently(self.episode.evaluator, partial(self.episode.answer, text, cut_off=cut_off))
        self._policies = (*self._policies, policy)
        return turn

    async def aanswer(self, text: str, *, cut_off: bool = False, policy: str = "") -> Turn:
        """Judge a model's answer without blocking the event loop; see `answer`."""
        self._check_open()
        with _losing(self):
            turn = await _apersistently(self.episode.evaluator, partial(self.episode.answer, text, cut_off=cut_off))
        self._policies = (*self._policies, policy)
        return turn

    def _noise(self) -> tuple[float, float]:
        """Return how much less and how much more the best turns may be worth, by the intervals of their timings."""
        verdicts = [turn.verdict for turn in self.episode.turns]
        if all(verdict.measured.timing is None for verdict in verdicts):
            return 0.0, 0.0
        below = above = 0.0
        for name, weight in load_reward(self.episode.config.reward).weights.items():
            paid, verdict = max(((terms(each)[name], each) for each in verdicts), key=lambda pair: pair[0])
            least, most = bounds(verdict)
            below += weight * (paid - least[name])
            above += weight * (most[name] - paid)
        return below, above

    def _check_open(self) -> None:
        if self.lost:
            raise UsageError(f"the machine failed in this rollout, which has no reward; start a new one ({self.lost})")


def _rules(episode: Episode) -> str:
    """Return what stands for what decides, beside the task, how texts are paid."""
    config, skeleton = episode.config, episode.skeleton
    parts = (config.reward, config.turns, config.stop, episode.init, skeleton and skeleton.text)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@contextmanager
def _losing(rollout: Rollout) -> Iterator[None]:
    """Mark a rollout as lost where its answer cannot be judged: trainers may catch what is raised, and go on."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        rollout.lost = f"{type(error).__name__}: {error}"
        raise


def _beginning(
    row: Mapping[str, Any], evaluator: Evaluator | None, settings: Mapping[str, Any]
) -> tuple[Callable[[], Episode], bool]:
    """Return what begins the episode that a row asks for, and whether that judges a kernel."""
    env, options = row.get("env"), dict(row.get("options") or {})
    if not isinstance(env, str):
        raise UsageError(f"a row names its environment in 'env', such as 'PTX-Gemm-H100', not {env!r}")
    if strange := sorted(set(options) - _SETTINGS):
        raise UsageError(f"options {strange[0]!r} is unknown; there are {', '.join(sorted(_SETTINGS))}")
    given = {**settings, **{name: value for name, value in options.items() if value is not None}}
    return partial(Episode, env, evaluator, **given), given.get("init") is not None


def _persistently(evaluator: Evaluator | None, judge: Callable[[], T]) -> T:
    """Judge; again, where the machine failed, unless it may still be at it."""
    for pause_s in JUDGE_PAUSES_S:
        try:
            return judging.of(evaluator).call(judge)
        except judging.Overdue:
            raise
        except InfrastructureError:
            time.sleep(pause_s)
    return judging.of(evaluator).call(judge)


async def _apersistently(evaluator: Evaluator | None, judge: Callable[[], T]) -> T:
    """Judge without blocking the event loop; see `_persistently`."""
    for pause_s in JUDGE_PAUSES_S:
        try:
            return await judging.of(evaluator).acall(judge)
        except judging.Overdue:
            raise
        except InfrastructureError:
            await asyncio.sleep(pause_s)
    return await judging.of(evaluator).acall(judge)


def dataset_rows(split: str = "train", envs: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return rows for a trainer's data set: `env` and `options` as `of_row` takes them, and `difficulty`.

    Args:
        split: `train`, or `eval` for those held out.
        envs: Plain ids to keep; by default all.

    Raises:
        UnknownNameError: if there is no such split.
    """
    return [
        {"env": row.env, "options": dict(row.options), "prompt": row.prompt, "difficulty": row.difficulty}
        for row in task_rows(split)
        if envs is None or row.env in envs
    ]
