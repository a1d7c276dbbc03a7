"""Where env runners of other processes and other machines note what they evaluate: on the disk of the run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.knobs.journal import Evaluated, Journal, evaluated
from ptxgym.knobs.template import Choice
from ptxgym.verdict import Verdict

NAMESPACE = "ptxgym"
"""Of Ray's named actors."""


class Recorder:
    """An actor of Ray's on the machine of the run: writes a journal for each env runner."""

    def __init__(self, folder: Path) -> None:
        """Write to the files of a folder."""
        self._folder = folder
        self._journals: dict[int, Journal] = {}

    def same_folder(self, identity: tuple[int, int]) -> bool:
        """Return whether the folder is the one that another process sees under the same name."""
        return self._folder.is_dir() and _identity(self._folder) == identity

    def take(self, runner: int, line: Evaluated) -> None:
        """Write what a runner has evaluated."""
        if runner not in self._journals:
            self._journals[runner] = Journal(self._folder / f"runner-{runner}.jsonl")
        self._journals[runner].take(line)


class SentNotes:
    """A notebook that is kept by the recorder."""

    def __init__(self, recorder: str, runner: int) -> None:
        """Find the recorder.

        Raises:
            InfrastructureError: if it has ended.
        """
        import ray

        self._ray, self._runner = ray, runner
        try:
            self._recorder: Any = ray.get_actor(recorder, namespace=NAMESPACE)
        except ValueError as error:
            raise InfrastructureError(f"the run that this env runner belongs to has ended: {error}") from error

    def note(self, setting: Mapping[str, Choice], verdict: Verdict) -> None:
        """Have a turn that was judged written down; it is on the disk when this returns.

        Raises:
            InfrastructureError: if it could not be written.
        """
        try:
            self._ray.get(self._recorder.take.remote(self._runner, evaluated(setting, verdict)))
        except self._ray.exceptions.RayError as error:
            last = next(iter(reversed(str(error).strip().splitlines())), type(error).__name__)
            raise InfrastructureError(f"an evaluation could not be written down: {last}") from error

    def close(self) -> None:
        """Do nothing: the recorder ends with the run."""


@contextlib.contextmanager
def recording(ray: Any, name: str, folder: Path) -> Iterator[None]:
    """Have a recorder of that name on this machine write to a folder.

    Raises:
        UsageError: if this process is on no machine of the cluster.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = (
        ray.remote(Recorder)
        .options(name=name, namespace=NAMESPACE, num_cpus=0, scheduling_strategy=here)
        .remote(folder)
    )
    try:
        if not ray.get(actor.same_folder.remote(_identity(folder))):
            raise UsageError(
                f"{folder} is not the same folder on Ray's node, so that what env runners evaluate would be lost: "
                "start the run on a node of the cluster, with RAY_ADDRESS=auto, not through Ray's client"
            )
        yield
    finally:
        ray.kill(actor)


def _identity(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino
