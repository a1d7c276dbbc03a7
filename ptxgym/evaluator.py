"""`Evaluator`: the whole pipeline in one call, with the processes and the memory that evaluations share."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ptxgym
from ptxgym import pipeline
from ptxgym.build import find_toolchain
from ptxgym.cache import Cache
from ptxgym.device.protocol import Device
from ptxgym.errors import UsageError
from ptxgym.judge.conditions import Conditions, conditions, run_secret
from ptxgym.judge.judge import JUDGE_REVISION
from ptxgym.task import Task, load_arch, load_task
from ptxgym.verdict import Failure, Verdict

VERDICTS_KEPT = 1024
RANDOM_SCHEDULES = 8

_Key = tuple[str, ...]


class Evaluator:
    """Judges kernel texts. Nothing about a bad submission is ever an exception.

    Use it as a context manager, or `close()` it; what is forgotten ends with the process. Safe to share among threads.
    After a fork the child starts processes of its own.

    Example:
        >>> with Evaluator() as evaluator:                                    # doctest: +SKIP
        ...     verdict = evaluator.evaluate(text, "gemm", "h100")
        >>> verdict.status, verdict.score, verdict.evidence.coverage          # doctest: +SKIP
    """

    def __init__(
        self,
        device: str | Device = "auto",
        *,
        secret: bytes | str | None = None,
        epoch: int = 0,
        cache: Cache | None = None,
        random_schedules: int = RANDOM_SCHEDULES,
    ) -> None:
        """Make an evaluator; nothing is started before the first evaluation.

        Args:
            device: `auto`, `emulator`, `cuda`, or a device of the caller's.
            secret: From which inputs and hidden shapes are drawn; by default the run's (`PTXGYM_SECRET`, or one drawn
                now, which processes started from here on share).
            epoch: Evaluations of one epoch share their conditions.
            cache: Where builds are kept; by default the user's cache.
            random_schedules: Adversarial schedules with random completion, beside the lazy one.

        Raises:
            UsageError: if `device` is unknown or not available, or the secret is empty.
        """
        if isinstance(device, str):
            check_device(device)
        self._chosen = device
        if secret is None:
            secret = run_secret()  # here, so that vector environments fork or spawn with it
        if not secret:
            raise UsageError("the secret is empty, so that anyone could compute the inputs; pass one, or None")
        self._secret = secret.encode() if isinstance(secret, str) else secret
        self._epoch = epoch
        self._cache = cache
        self._random_schedules = random_schedules
        self._closed = False
        self._lock = threading.Lock()
        self._setting: pipeline.Setting | None = None
        self._finalizer: Callable[[], Any] | None = None
        self._verdicts: OrderedDict[_Key, Verdict] = OrderedDict()
        self._running: dict[_Key, Future[Verdict]] = {}
        _ALIVE.add(self)

    @classmethod
    def shared(cls, device: str = "auto") -> Evaluator:
        """Return this process's evaluator for `device`; it lives as long as someone holds it."""
        with _SHARED_LOCK:
            evaluator = _SHARED.get(device)
            if evaluator is None or evaluator._closed:
                evaluator = _SHARED[device] = cls(device)
            return evaluator

    def evaluate(self, text: str, task: Task | str, arch: str = "h100", workload: str | None = None) -> Verdict:
        """Judge `text`.

        Equal texts under equal conditions get the same verdict, from memory the second time.

        Args:
            text: A whole kernel file, or whatever an agent wrote instead.
            task: What was asked for, or its name.
            arch: For which GPU generation.
            workload: By default the device's own: `emulation`.

        Raises:
            UnknownNameError: if task, architecture or workload does not exist.
            UsageError: if `text` is no `str`, the workload is not for this device, or the evaluator is closed.
            InfrastructureError: if the machine failed; try again.
        """
        if not isinstance(text, str):
            raise UsageError(f"a submission is a str, not {type(text).__name__}")
        task = load_task(task) if isinstance(task, str) else task
        load_arch(arch)
        drawn = self._conditions(task, workload or "emulation")
        setting = self._started()
        key = _key(text, task, arch, drawn, setting)
        with self._lock:
            if key in self._verdicts:
                self._verdicts.move_to_end(key)
                return self._verdicts[key]
            running = self._running.get(key)
            mine: Future[Verdict] | None = None
            if running is None:
                mine = self._running[key] = Future()
        if mine is None:
            assert running is not None
            return running.result()
        try:
            stress = self._conditions(task, "schedules").cases[0]
            verdict = pipeline.evaluate(text, task, arch, drawn, stress, setting)
        except BaseException as error:
            with self._lock:
                self._running.pop(key, None)
            mine.set_exception(error)
            raise
        with self._lock:
            self._running.pop(key, None)
            self._verdicts[key] = verdict
            while len(self._verdicts) > VERDICTS_KEPT:
                self._verdicts.popitem(last=False)
        mine.set_result(verdict)
        return verdict

    async def aevaluate(self, text: str, task: Task | str, arch: str = "h100", workload: str | None = None) -> Verdict:
        """Judge `text` without blocking the event loop; see `evaluate`."""
        return await asyncio.to_thread(self.evaluate, text, task, arch, workload)

    def check_workload(self, task: Task, name: str) -> None:
        """Accept the name of a workload of `task` that can be judged here.

        Raises:
            UnknownNameError: if the task has no such workload.
            UsageError: if it is not for this device.
        """
        task.workload(name)
        if name == "hardware":
            raise UsageError(
                "workload 'hardware' is timed on a GPU; the emulator judges on 'emulation' (the default) or 'schedules'"
            )

    def refuse(self, failure: Failure, text: str, task: Task, arch: str) -> Verdict:
        """Return the verdict of a submission that a caller's own rule refused."""
        return pipeline.refuse(failure, text, task, arch)

    def close(self) -> None:
        """End the processes of this evaluator; calling it again does nothing."""
        with self._lock:
            self._closed = True
            finalizer, self._finalizer, self._setting = self._finalizer, None, None
            self._verdicts.clear()
        if finalizer is not None:
            finalizer()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the evaluator itself: copies of what uses it, such as a Gymnasium spec, share it."""
        return self

    def __enter__(self) -> Self:
        """Return the evaluator."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the evaluator."""
        self.close()

    def _conditions(self, task: Task, workload: str) -> Conditions:
        self.check_workload(task, workload)
        return conditions(task, workload, self._epoch, self._secret)

    def _started(self) -> pipeline.Setting:
        """Return the setting, with the device started at the first call."""
        with self._lock:
            if self._closed:
                raise UsageError("the evaluator is closed; make a new one")
            if self._setting is None:
                find_toolchain()  # before anything is started, say what is missing
                device, revision = self._chosen, None
                if isinstance(device, str):
                    from ptxgym.device.emulator.device import EmulatorDevice

                    emulator = EmulatorDevice(cache=self._cache)
                    self._finalizer = weakref.finalize(self, emulator.close)
                    device, revision = emulator, emulator_revision()
                self._setting = pipeline.Setting(device, revision, self._cache or Cache(), self._random_schedules)
            return self._setting

    def _forget_after_fork(self) -> None:
        """Drop what belongs to the parent process: its device, and locks that its threads may have held."""
        self._lock = threading.Lock()
        self._setting = None
        self._running = {}
        if isinstance(self._finalizer, weakref.finalize):
            self._finalizer.detach()
        self._finalizer = None


@functools.cache
def emulator_revision() -> str:
    """Return 16 hex digits that change with any source file of the emulator, whatever the machine."""
    package = Path(ptxgym.__file__).parent
    files = [*(package / "native" / "emulator").rglob("*"), *(package / "device" / "emulator").glob("*.py")]
    total = hashlib.sha256()
    for file in sorted(file for file in files if file.suffix in (".cpp", ".hpp", ".def", ".py")):
        data = file.read_bytes()
        total.update(f"{file.name} {len(data)}\n".encode() + data)
    return total.hexdigest()[:16]


def check_device(name: str) -> None:
    """Accept the name of a device that this version has.

    Raises:
        UsageError: if it has none of that name.
    """
    if name == "cuda":
        raise UsageError("device 'cuda' is not part of this version; use 'emulator', or 'auto', which picks it")
    if name not in ("auto", "emulator"):
        raise UsageError(f"device must be 'auto', 'emulator' or 'cuda', not {name!r}")


def _key(text: str, task: Task, arch: str, drawn: Conditions, setting: pipeline.Setting) -> _Key:
    """Everything that a verdict depends on."""
    return (
        hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest(),
        hashlib.sha256(task.model_dump_json().encode()).hexdigest(),
        arch,
        drawn.workload,
        drawn.hash,
        find_toolchain().name,
        setting.device.name,
        str(setting.emulator_revision),
        str(JUDGE_REVISION),
    )


_SHARED: weakref.WeakValueDictionary[str, Evaluator] = weakref.WeakValueDictionary()
_SHARED_LOCK = threading.Lock()
_ALIVE: weakref.WeakSet[Evaluator] = weakref.WeakSet()


def _after_fork() -> None:
    global _SHARED_LOCK
    _SHARED_LOCK = threading.Lock()
    for evaluator in list(_ALIVE):
        evaluator._forget_after_fork()


os.register_at_fork(after_in_child=_after_fork)
