"""Failed kernels in a teacher's hands; what it hands in counts only if the evaluator passes it.

A repair is judged under conditions of its own: draws and a hidden shape that the failing run did not use. A kernel that
fits what its author was shown, and nothing else, is no repair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from ptxgym import judging
from ptxgym.agent import Agent, Identity, run_episode
from ptxgym.bench.journal import JournaledAgent
from ptxgym.envs import load_env
from ptxgym.episode import Episode
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.fixit.recipe import RepairRules
from ptxgym.fixit.records import FailedKernel, Repair, passes
from ptxgym.fixit.teaching import Instructed, settle_all
from ptxgym.fixit.workshop import REPAIRS, Workshop
from ptxgym.store.records import TurnRecord

EPOCH = 1
"""Of the conditions of repairs; runs are epoch 0."""


async def repair_all(
    workshop: Workshop,
    teacher: Agent,
    evaluator: Evaluator,
    *,
    at_once: int = 4,
    on_repair: Callable[[Repair], None] = lambda repair: None,
    on_trouble: Callable[[str], None] = lambda message: None,
) -> int:
    """Have every failure repaired that is not settled yet.

    Args:
        workshop: Where the failures lie and results go.
        teacher: Who repairs.
        evaluator: Who judges; of another epoch or secret than the runs.
        at_once: Failures that are worked on at the same time.
        on_repair: Takes each result as soon as it is on disk.
        on_trouble: Takes what the machine or the endpoint failed at.

    Returns:
        How many failures stay open, for another sitting.

    Raises:
        UsageError: if the teacher is set up wrongly, or the evaluator judges as the failing run did.
    """
    known = workshop.repairs()
    open_ = [failure for failure in workshop.mined if failure.id not in known]
    with workshop.writing(REPAIRS, "repair") as (lines, journal):
        agent = Instructed(JournaledAgent(teacher, journal, asyncio.Semaphore(at_once)))

        async def settle(failure: FailedKernel) -> None:
            result = await repair(failure, agent, evaluator, workshop.front.recipe.repair)
            lines.append(result)
            on_repair(result)

        return await settle_all(open_, settle, at_once, on_trouble)


async def repair(failure: FailedKernel, agent: Agent, evaluator: Evaluator, rules: RepairRules) -> Repair:
    """Have one failure repaired.

    Raises:
        InfrastructureError: if the machine or the teacher's endpoint failed.
        UsageError: if the teacher is set up wrongly, or the evaluator judges as the failing run did.
    """
    config = load_env(failure.env).override(variant=failure.variant, turns=rules.attempts, stop="target_ok")
    episode = await judging.of(evaluator).acall(partial(Episode, config, evaluator, init=failure.source))
    assert episode.init_verdict is not None  # it has an `init`
    judged = episode.init_verdict.provenance.conditions
    if judged == failure.conditions:
        raise UsageError(
            f"failure {failure.id} would be judged under the very conditions of the failing run; "
            "give the evaluator another epoch or another secret"
        )
    whole: dict[str, Any] = {"failure": failure.id, "teacher": agent.name}
    if passes(episode.init_verdict):
        return Repair(**whole, status="passes_already", attempts=0, last=episode.init_verdict.code)
    identity = Identity(env=failure.env, agent=agent.name, variant=failure.variant, arm=failure.id)
    record, turns = await run_episode(episode, agent, identity)
    if record.status == "infra":
        raise InfrastructureError(f"failure {failure.id}: {record.problem}")
    whole |= {"attempts": len(turns), "usage": record.usage, "model": turns[-1].model, "last": turns[-1].verdict.code}
    found = _passing(turns)
    if found is None:
        return Repair(**whole, status="refused" if record.status == "refused" else "failed")
    conditions = found.verdict.provenance.conditions or ""
    return Repair(**whole, status="repaired", source=found.source, score=found.score, conditions=conditions)


def _passing(turns: tuple[TurnRecord, ...]) -> TurnRecord | None:
    return next((turn for turn in turns if passes(turn.verdict)), None)
