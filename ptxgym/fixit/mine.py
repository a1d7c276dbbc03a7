"""Failed kernels of runs, sampled by task, kind of error and turn.

A sample is a function of records, recipe and seed: neither the machine, nor where a run lies, nor the order in which
its episodes ended makes a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ptxgym.agent.prompting import WITHOUT_KERNEL
from ptxgym.envs import EnvConfig, load_env
from ptxgym.errors import UsageError
from ptxgym.fixit.recipe import MineRules
from ptxgym.fixit.records import FailedKernel, digest, failure_id, kind_of
from ptxgym.fixit.sampling import stratified
from ptxgym.store.lines import to_json
from ptxgym.store.reader import StoredRun
from ptxgym.store.records import EpisodeRecord, TurnRecord
from ptxgym.task import load_task
from ptxgym.variants import variants_of


def mine(runs: Iterable[StoredRun], rules: MineRules, seed: int) -> tuple[FailedKernel, ...]:
    """Sample failed kernels of runs.

    Args:
        runs: In any order; the same kernel with the same feedback counts once.
        rules: What is wanted.
        seed: Of the choice within a stratum.

    Raises:
        UsageError: if an environment is not of this version, or nothing is left to sample.
    """
    wanted = {load_env(name).pinned for name in rules.envs}
    found: dict[str, FailedKernel] = {}
    for run in runs:
        for kernel in failures(run):
            if wanted and kernel.env not in wanted:
                continue
            if kernel.split not in rules.splits or kernel.kind not in rules.kinds:
                continue
            if rules.last_turn is not None and kernel.turn > rules.last_turn:
                continue
            known = found.get(kernel.id)
            if known is None or _place(kernel) < _place(known):
                found[kernel.id] = kernel
    if not found:
        raise UsageError(
            f"no failed kernel is left to mine: splits {', '.join(rules.splits)}, kinds {', '.join(rules.kinds)}; "
            'kernels of held-out tasks (`base` and the variants of split eval) need splits = ["train", "eval"]'
        )
    return tuple(_sampled(found.values(), rules, seed))


def failures(run: StoredRun) -> Iterator[FailedKernel]:
    """Yield the failed kernels of a run that has them with whole feedback.

    Raises:
        UsageError: if an environment is not of this version.
    """
    name = digest(to_json(run.record))
    splits: dict[str, dict[str, str]] = {}
    for episode in run.episodes:
        config = load_env(episode.env)
        if config.task not in splits:
            splits[config.task] = {each.name: each.split for each in variants_of(load_task(config.task))}
        for turn in run.turns_of(episode.id):
            kernel = _failure(name, config, episode, turn, splits[config.task])
            if kernel is not None:
                yield kernel


def _failure(
    run: str, config: EnvConfig, episode: EpisodeRecord, turn: TurnRecord, splits: dict[str, str]
) -> FailedKernel | None:
    kind, found = kind_of(turn.verdict), turn.verdict.provenance
    if kind is None or found.conditions is None or turn.verdict.code in WITHOUT_KERNEL:
        return None
    if turn.solution or not turn.feedback.strip():
        return None
    if found.variant not in splits:
        raise UsageError(f"{episode.id}: task {config.task} has no variant {found.variant!r} in this version of ptxgym")
    return FailedKernel.model_validate(
        {
            "id": failure_id(config.pinned, found.variant, turn.source, turn.feedback),
            "env": config.pinned,
            "task": config.task,
            "variant": found.variant,
            "arch": config.arch,
            "split": splits[found.variant],
            "kind": kind,
            "code": turn.verdict.code,
            "turn": turn.turn,
            "source": turn.source,
            "feedback": turn.feedback,
            "conditions": found.conditions,
            "episode": episode.id,
            "run": run,
        }
    )


def _sampled(found: Iterable[FailedKernel], rules: MineRules, seed: int) -> list[FailedKernel]:
    """Sample each task by kind and turn, then all by task where that is still too much."""
    tasks: dict[tuple[str, str], list[FailedKernel]] = {}
    for kernel in found:
        tasks.setdefault((kernel.env, kernel.variant), []).append(kernel)
    kept = [
        kernel
        for _, kernels in sorted(tasks.items())
        for kernel in stratified(
            kernels, rules.per_task, rules.balance, seed, lambda each: (each.kind, each.turn), lambda each: each.id
        )
    ]
    return stratified(kept, rules.size, rules.balance, seed, lambda each: each.stratum, lambda each: each.id)


def _place(kernel: FailedKernel) -> tuple[int, str, str]:
    """Of the same failure, the earliest counts."""
    return kernel.turn, kernel.run, kernel.episode
