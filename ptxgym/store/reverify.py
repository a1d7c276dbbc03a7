"""Judge the kernels of a run again, under its own conditions, and say which verdicts are other ones now.

For after a change of emulator, recorder or judge: what was published should still hold, or be corrected.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptxgym import judging
from ptxgym.availability import check_tier
from ptxgym.device.cuda.model import Tier
from ptxgym.envs import load_env
from ptxgym.errors import UnknownNameError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.judge.conditions import run_secret, secret_hash
from ptxgym.serve.connection import is_address
from ptxgym.store.reader import StoredRun, read_run
from ptxgym.store.records import EpisodeRecord, TurnRecord
from ptxgym.store.solutions import kernel_of, unquoted
from ptxgym.store.writer import stored_secret
from ptxgym.task import BASE, Task
from ptxgym.variants import load_variant
from ptxgym.verdict import Verdict


@dataclass(frozen=True)
class Kernel:
    """A text that was judged, and where it stands on record."""

    source: str
    task: Task
    arch: str
    verdict: Verdict
    places: tuple[tuple[str, int], ...]
    """Episode and turn of each time that it was handed in."""


@dataclass(frozen=True)
class Change:
    """A verdict that is another one now."""

    kernel: Kernel
    now: Verdict
    parts: tuple[str, ...]
    """What differs, such as `status` or `outputs`."""


def reverify(
    folder: Path,
    device: str | None = None,
    *,
    threads: int = 1,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Change, ...]:
    """Judge every distinct kernel of a run again.

    Args:
        folder: Of the run.
        device: The address of a service that draws from the run's secret; by default this machine's, as in the run.
        threads: How many kernels are judged at once.
        on_progress: Takes how many are judged, of how many.

    Raises:
        UsageError: if there is no such run, its secret is not known, here or to the service, or its device or an
            environment is not to be had.
        InfrastructureError: if the machine failed; try again.
    """
    stored = read_run(folder)
    found = kernels(stored)
    tier = next((each.verdict.provenance.tier for each in found if each.verdict.provenance.tier), "standard")
    with _evaluator(stored, device, check_tier(tier)) as evaluator:
        _check_devices(found, evaluator)
        judge = [functools.partial(evaluator.evaluate, each.source, each.task, each.arch) for each in found]
        with contextlib.closing(judging.Judging(threads, None).each(judge)) as results:  # an interrupt waits for none
            return tuple(_changed(found, results, on_progress))


def kernels(stored: StoredRun) -> tuple[Kernel, ...]:
    """Return the distinct kernels of a run; answers without one were never judged, and what is `gone` is left out.

    Raises:
        UsageError: if an environment is not of this version.
    """
    episodes = {episode.id: episode for episode in stored.episodes}
    tasks: dict[str, tuple[Task, str]] = {}
    known: dict[tuple[str, str, str], Kernel] = {}
    for turn in stored.turns:
        if turn.verdict.provenance.conditions is None:
            continue
        source = kernel_of(turn)
        if source is None:
            continue
        if turn.episode not in tasks:
            tasks[turn.episode] = _task(turn, episodes.get(turn.episode))
        task, arch = tasks[turn.episode]
        key = source, task.label, arch
        places = (*(known[key].places if key in known else ()), (turn.episode, turn.turn))
        verdict = known[key].verdict if key in known else turn.verdict
        known[key] = Kernel(source, task, arch, verdict, places)
    return tuple(known.values())


def gone(stored: StoredRun) -> tuple[str, ...]:
    """Return the names of proven solutions that were judged and cannot be again: they are not here, or others now."""
    return tuple(sorted({turn.solution for turn in stored.turns if turn.solution and kernel_of(turn) is None}))


def changed_parts(before: Verdict, now: Verdict) -> tuple[str, ...]:
    """Return the names of the deterministic parts that differ.

    Who judged with which version is none of them, nor are the lines that a verdict quotes: they follow from the text.
    """
    first, second = _comparable(before), _comparable(now)
    return tuple(name for name in first if first[name] != second.get(name))


def _changed(
    found: tuple[Kernel, ...], results: Iterator[Verdict], on_progress: Callable[[int, int], None]
) -> Iterator[Change]:
    on_progress(0, len(found))
    for number, (kernel, now) in enumerate(zip(found, results, strict=True), 1):
        on_progress(number, len(found))
        if parts := changed_parts(kernel.verdict, now):
            yield Change(kernel, now, parts)


def _check_devices(found: tuple[Kernel, ...], evaluator: Evaluator) -> None:
    """Refuse to compare what one device said with what another says."""
    for arch, before in sorted({(each.arch, each.verdict.provenance.device or "") for each in found}):
        gpu = evaluator.gpu(arch)
        now = "emulator" if gpu is None else gpu.name
        if before not in ("", now):  # empty where a kernel was never executed
            raise UsageError(
                f"kernels for {arch} were judged on {before}, and here that would be the {now}: their verdicts cannot "
                f"be compared; judge the run again on a machine with {before}"
            )


def _comparable(verdict: Verdict) -> dict[str, Any]:
    return {name: value for name, value in unquoted(verdict).deterministic().items() if name != "provenance"}


def _task(turn: TurnRecord, episode: EpisodeRecord | None) -> tuple[Task, str]:
    """Return what a turn was judged on; its episode may not have ended."""
    found = turn.verdict.provenance
    if episode is not None:
        try:
            load_env(episode.env)
        except UnknownNameError as error:
            raise UsageError(
                f"{episode.id}: {error}; judge the run with the version of ptxgym that it names"
            ) from error
    return load_variant(found.task, found.variant or BASE), found.arch


def _evaluator(stored: StoredRun, device: str | None, tier: Tier) -> Evaluator:
    """Return what judges a run again, under its own conditions."""
    here = "emulator" if stored.record.device == "emulator" else "auto"
    if device is None:
        return Evaluator(here, tier=tier, secret=_secret(stored))
    if not is_address(device):
        raise UsageError(f"device must be the address of a service or left out, not {device!r}: a run names its own")
    service = Evaluator(device, tier=tier)
    if service.secret_hash != stored.record.conditions_sha256:
        raise UsageError(
            f"{device} draws from another secret than the run in {stored.folder} ({service.secret_hash} instead of "
            f"{stored.record.conditions_sha256}); ask the service that judged it, or leave the device out"
        )
    service.check_epoch()
    return service


def _secret(stored: StoredRun) -> str:
    """Return the secret that the run was judged with."""
    for secret in (stored_secret(stored.folder), run_secret().decode()):
        if secret is not None and secret_hash(secret.encode()) == stored.record.conditions_sha256:
            return secret
    raise UsageError(
        f"the secret of {stored.folder} is not there, so its conditions cannot be made again; put it into "
        f"{stored.folder / 'secret'}, or into PTXGYM_SECRET; of a run that a service judged, name that by --device"
    )
