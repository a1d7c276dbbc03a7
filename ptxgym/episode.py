"""An episode: a few turns on one environment, in plain Python, for every caller that is not a Gymnasium loop."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ptxgym import judging
from ptxgym.availability import check_evaluator, default_workload
from ptxgym.envs import EnvConfig, StopRule, load_env
from ptxgym.errors import UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.feedback import render
from ptxgym.knowledge import expand, render_knowledge
from ptxgym.prompt import Measuring, render_prompt
from ptxgym.reward import Ledger, load_reward
from ptxgym.skeleton import Skeleton
from ptxgym.submission import extract
from ptxgym.variants import load_variant
from ptxgym.verdict import Failure, Verdict


@dataclass(frozen=True)
class Turn:
    """One submission and all that came of it."""

    number: int
    """From 1."""
    source: str
    verdict: Verdict
    feedback: str
    reward: float
    terms: dict[str, float]
    """The reward by term; it sums to `reward`."""
    best_score: float
    """Best score of the episode, this turn included."""
    done: bool
    notes: tuple[str, ...] = ()
    """What `ptxgym.submission.extract` remarked on the answer that held the kernel."""

    @property
    def score(self) -> float:
        """Score of this turn's verdict, in [0, 1]."""
        return self.verdict.score


class Episode:
    """Turns on one environment: `prompt()`, then `submit(text)` until `done`."""

    def __init__(
        self,
        env: str | EnvConfig,
        evaluator: Evaluator | None = None,
        *,
        variant: str | None = None,
        turns: int | None = None,
        reward: str | None = None,
        stop: str | None = None,
        feedback_bytes: int | None = None,
        knowledge: Sequence[str] | None = None,
        workload: str | None = None,
        init: str | None = None,
        skeleton: str | None = None,
    ) -> None:
        """Start an episode; with `init`, by judging it.

        Args:
            env: Plain or pinned id, or a configuration.
            evaluator: Shared by any number of episodes; by default the one of this process.
            variant: Overrides the environment's variant of its task, such as `d64` (`ptxgym.variants`).
            turns: Overrides the environment's number of turns.
            reward: Overrides the reward preset.
            stop: Overrides the stop rule: `never`, `target_ok` or `speedup:<x>`.
            feedback_bytes: Overrides the cap of each feedback.
            knowledge: Overrides the parts of the architecture's knowledge pack that the prompt holds; `all` expands.
            workload: The workload to judge on; by default the device's own.
            init: A kernel to start from; what its score is worth counts as paid.
            skeleton: A kernel of which only marked regions may change (`ptxgym.skeleton`).

        Raises:
            UnknownNameError: if the environment, its task, the variant or the reward does not exist.
            UsageError: if a value is not acceptable.
            InfrastructureError: if the machine fails while judging `init`.
        """
        chosen: dict[str, Any] = {"variant": variant, "turns": turns, "reward": reward, "stop": stop}
        chosen |= {"feedback_bytes": feedback_bytes, "knowledge": None if knowledge is None else expand(knowledge)}
        if not isinstance(env, str | EnvConfig):
            raise UsageError(f"env must be the id of an environment or its EnvConfig, not {env!r}; see `ptxgym list`")
        config = load_env(env) if isinstance(env, str) else env
        self.config = config.override(**{name: value for name, value in chosen.items() if value is not None})
        self.task = load_variant(self.config.task, self.config.variant)
        render_knowledge(self.config.arch, self.config.knowledge, self.config.task)  # refuse what there is not, here
        self.evaluator = evaluator if evaluator is not None else Evaluator.shared()
        check_evaluator(self.evaluator)
        if workload is not None:
            self.evaluator.check_workload(self.task, workload, self.config.arch)
        self.skeleton = Skeleton.parse(skeleton) if skeleton is not None else None
        self.init = init
        self.turns: tuple[Turn, ...] = ()
        self.best: Turn | None = None
        """The first turn with the best score; None before the first turn."""
        self.init_verdict = (
            None if init is None else self.evaluator.evaluate(init, self.task, self.config.arch, workload)
        )
        self._workload = workload
        self._stop = StopRule.parse(self.config.stop)
        self._ledger = Ledger.start(load_reward(self.config.reward), self.init_verdict)
        self._lock = threading.Lock()

    @property
    def done(self) -> bool:
        """Whether the last turn is over."""
        return bool(self.turns) and self.turns[-1].done

    @property
    def turns_left(self) -> int:
        """Turns that may still be submitted."""
        return 0 if self.done else self.config.turns - len(self.turns)

    @property
    def best_score(self) -> float:
        """Best score so far, that of `init` included."""
        start = self.init_verdict.score if self.init_verdict is not None else 0.0
        return max(start, self.best.score if self.best is not None else 0.0)

    @property
    def best_source(self) -> str:
        """The first text with the best score; `init` or nothing before one is better."""
        start = self.init_verdict.score if self.init_verdict is not None else -1.0
        return self.best.source if self.best is not None and self.best.score > start else self.init or ""

    @property
    def due(self) -> float:
        """Reward that is reached and not yet paid; above 0 only under presets that pay at the end, until then.

        A caller that ends the episode early, because a context is full or a budget spent, adds it.
        """
        return self._ledger.due

    def prompt(self) -> str:
        """Return what the agent reads before its first turn."""
        gpu = self.evaluator.gpu(self.config.arch)
        measured = None
        if gpu is not None:
            workload = self._workload or default_workload(self.task, gpu)
            measured = Measuring(gpu.name, self.evaluator.tier, workload)
        skeleton = self.skeleton.text if self.skeleton else None
        return render_prompt(self.config, init=self.init, skeleton=skeleton, measured=measured)

    def opening(self) -> str:
        """Return the feedback on `init`; empty without one."""
        if self.init_verdict is None or self.init is None:
            return ""
        return render(self.init_verdict, self.init, cap_bytes=self.config.feedback_bytes)

    def submit(self, text: str) -> Turn:
        """Judge `text` as the next turn.

        Raises:
            UsageError: if the episode is over, or `text` is no `str`.
            InfrastructureError: if the machine failed; the turn does not count and may be repeated.
        """
        return self._settle(text, None)

    def answer(self, text: str, *, cut_off: bool = False) -> Turn:
        """Judge the kernel file in a model's answer as the next turn; an answer without one is rejected.

        Args:
            text: The whole answer, in Markdown.
            cut_off: Whether the answer is known to have reached its limit.

        Raises:
            UsageError: if the episode is over.
            InfrastructureError: if the machine failed; the turn does not count and may be repeated.
        """
        found = extract(text, cut_off=cut_off)
        return self._settle(text if found.failure else found.text, found.failure, found.notes)

    def _settle(self, text: str, failure: Failure | None, notes: tuple[str, ...] = ()) -> Turn:
        with self._lock:
            if self.done:
                raise UsageError(f"the episode is over after turn {len(self.turns)}; start a new one")
            verdict = self._judge(text, failure)
            number = len(self.turns) + 1
            done = number >= self.config.turns or self._stop.reached(verdict)
            payment, ledger = self._ledger.settle(verdict, last=done)
            turn = Turn(
                number=number,
                source=text,
                verdict=verdict,
                feedback=render(verdict, text, cap_bytes=self.config.feedback_bytes),
                reward=payment.reward,
                terms=payment.terms,
                best_score=max(self.best_score, verdict.score),
                done=done,
                notes=notes,
            )
            judging.check_awaited()
            self.turns, self._ledger = (*self.turns, turn), ledger
            if self.best is None or turn.score > self.best.score:
                self.best = turn
            return turn

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process: a copy, pickled or not, goes on from the same turn by itself."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over the turns of another episode."""
        self.__dict__.update(state)
        self._lock = threading.Lock()

    async def asubmit(self, text: str) -> Turn:
        """Judge `text` as the next turn without blocking the event loop, up to the deadline of `ptxgym.judging`.

        A turn that is given up, by that deadline or by a cancelled task, does not count, whenever its verdict comes.
        """
        return await judging.of(self.evaluator).acall(partial(self.submit, text))

    async def aanswer(self, text: str, *, cut_off: bool = False) -> Turn:
        """Judge the kernel file in a model's answer without blocking the event loop; see `answer` and `asubmit`."""
        return await judging.of(self.evaluator).acall(partial(self.answer, text, cut_off=cut_off))

    def _judge(self, text: str, failure: Failure | None) -> Verdict:
        if not isinstance(text, str):
            raise UsageError(f"a submission is a str, not {type(text).__name__}")
        if failure is None and self.skeleton is not None:
            failure = self.skeleton.check(text)
        if failure is not None:
            return self.evaluator.refuse(failure, text, self.task, self.config.arch)
        return self.evaluator.evaluate(text, self.task, self.config.arch, self._workload)
