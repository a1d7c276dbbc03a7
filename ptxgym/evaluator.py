"""`Evaluator`: the whole pipeline in one call, with the processes and the memory that evaluations share."""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self, cast

from ptxgym import judging, measured, pipeline
from ptxgym.arguments import whole_number
from ptxgym.availability import (
    check_device,
    check_tier,
    default_workload,
    idle_gpu,
    unmeasured_tier,
    usable_gpu,
    why_emulated,
)
from ptxgym.build import find_toolchain
from ptxgym.cache import Cache
from ptxgym.device.cuda.client import CudaJudge
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.model import Tier
from ptxgym.device.emulator.revision import emulator_revision
from ptxgym.device.protocol import Device
from ptxgym.errors import UsageError
from ptxgym.judge.conditions import Case, Conditions, conditions, run_secret, secret_hash
from ptxgym.judge.judge import JUDGE_REVISION
from ptxgym.memory import Key, Memory
from ptxgym.serve.connection import is_address
from ptxgym.task import Task, load_arch
from ptxgym.variants import asked_for
from ptxgym.verdict import Failure, Verdict

RANDOM_SCHEDULES = 8


class Evaluator:
    """Judges kernel texts. Nothing about a bad submission is ever an exception.

    Use it as a context manager, or `close()` it; what is forgotten ends with the process. Safe to share among threads.
    After a fork the child starts processes of its own. Pickled, it is its configuration; the secret stays behind, so
    that only an evaluator with the run's secret, which the other process finds in `PTXGYM_SECRET`, can be pickled.

    For the address of a service, what is made is a `ptxgym.serve.remote.RemoteEvaluator`.

    Example:
        >>> with Evaluator() as evaluator:                                    # doctest: +SKIP
        ...     verdict = evaluator.evaluate(text, "gemm", "h100")
        >>> verdict.status, verdict.score, verdict.evidence.coverage          # doctest: +SKIP
    """

    queues: ClassVar[bool] = False
    """Whether evaluations wait in a queue that ends them by deadlines of its own, as a service's do."""

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        """Make what evaluates on a device: an address is asked over HTTP."""
        made: type[Evaluator] = cls
        if cls is Evaluator and is_address(settings.get("device", *arguments[:1])):
            from ptxgym.serve.remote import RemoteEvaluator

            made = RemoteEvaluator
        return cast(Self, super().__new__(made))

    def __init__(
        self,
        device: str | Device = "auto",
        *,
        tier: Tier = "standard",
        secret: bytes | str | None = None,
        epoch: int = 0,
        cache: Cache | None = None,
        random_schedules: int = RANDOM_SCHEDULES,
        builds: int | None = None,
        runs: int | None = None,
    ) -> None:
        """Make an evaluator; nothing is started before the first evaluation.

        Args:
            device: `auto` (a GPU of the architecture where there is one, else the emulator), `emulator`, `cuda`, the
                address of a service (`http://host:port`, of `ptxgym serve`), or a device of the caller's.
            tier: How a GPU measures: `rl` (counts by the emulator; only what is right and runs on target instructions
                is timed), `standard` (counts by Nsight Compute), `publish` (the same, or an error; more pairs). Where
                kernels are emulated only `standard`, the default, is accepted: nothing is measured.
            secret: From which inputs and hidden shapes are drawn; by default the run's (`PTXGYM_SECRET`, or one drawn
                now, which processes started from here on share).
            epoch: Evaluations of one epoch share their conditions.
            cache: Where builds are kept; by default the user's cache.
            random_schedules: Adversarial schedules with random completion, beside the lazy one.
            builds: How many submissions may compile at once; by default as many as there are callers.
            runs: How many may be recorded, executed and judged at once; the same.

        Raises:
            UsageError: if `device` or `tier` is unknown or not available, the secret is empty, a limit is below 1, or
                a value has the wrong type.
        """
        if isinstance(device, str) or not hasattr(device, "run"):
            check_device(device)
        self._chosen = device
        self._tier = check_tier(tier)
        if device not in ("auto", "cuda") and self._tier != "standard":
            raise unmeasured_tier(self._tier, "the device chosen does not measure")
        self._own_secret = secret is not None
        # Drawn here, so that vector environments fork or spawn with it.
        self._secret = _secret_bytes(run_secret() if secret is None else secret)
        self._epoch = whole_number("epoch", epoch, 0)
        if not isinstance(cache, Cache | None):
            raise UsageError(
                f"cache must be a ptxgym.cache.Cache or None, not {cache!r}; or set PTXGYM_CACHE to a folder"
            )
        self._cache = cache
        self._random_schedules = whole_number("random_schedules", random_schedules, 0)
        self._limits = (builds, runs)
        self._gates = pipeline.Gates.limited(builds, runs)
        self._closed = False
        self._lock = threading.Lock()
        self._setting: pipeline.Setting | None = None
        self._judges: dict[str, CudaJudge] = {}
        self._started: list[Callable[[], None]] = []
        self._finalizer: Callable[[], Any] | None = None
        self._memory = Memory()
        _ALIVE.add(self)

    @classmethod
    def shared(cls, device: str = "auto", tier: Tier = "standard") -> Evaluator:
        """Return this process's evaluator for `device` and `tier`; it lives as long as someone holds it."""
        with _SHARED_LOCK:
            evaluator = _SHARED.get((device, tier))
            if evaluator is None or evaluator._closed:
                evaluator = _SHARED[device, tier] = cls(device, tier=tier)
            return evaluator

    @property
    def tier(self) -> Tier:
        """How a GPU measures."""
        return self._tier

    @property
    def epoch(self) -> int:
        """Of the conditions."""
        return self._epoch

    @property
    def secret_hash(self) -> str:
        """Hash of the secret from which inputs and hidden shapes are drawn; it may be logged."""
        return secret_hash(self._secret)

    def served_versions(self) -> Mapping[str, str] | None:
        """Return on what versions the verdicts of a service depend; None where the evaluator judges here."""
        return None

    def gpu(self, arch: str) -> Gpu | None:
        """Return the GPU that measures kernels for `arch`; None where the emulator runs them.

        Raises:
            UsageError: if device `cuda` was asked for and there is no such GPU, or a package is missing.
        """
        return usable_gpu(self._chosen, arch)

    def check_measures(self, arch: str) -> None:
        """Accept the tier for kernels for `arch`.

        Raises:
            UsageError: if a tier other than `standard` was asked for and such kernels are emulated here.
        """
        if self._tier == "standard" or self.gpu(arch) is not None:
            return
        raise unmeasured_tier(self._tier, why_emulated(arch))

    def check_epoch(self) -> None:
        """Accept the epoch of the conditions.

        Raises:
            UsageError: if a service judges, and under those of another.
        """

    def evaluate(
        self,
        text: str,
        task: Task | str,
        arch: str = "h100",
        workload: str | None = None,
        *,
        variant: str | None = None,
    ) -> Verdict:
        """Judge `text`.

        Equal texts under equal conditions get the same verdict, from memory the second time.

        Args:
            text: A whole kernel file, or whatever an agent wrote instead.
            task: What was asked for, or its name.
            arch: For which GPU generation.
            workload: By default the device's own: `hardware` on a GPU, `emulation` on the emulator.
            variant: Of the task, such as `d64` (`ptxgym.variants`); by default the task as it is given.

        Raises:
            UnknownNameError: if task, variant, architecture or workload does not exist.
            UsageError: if `text` is no `str`, workload or tier are not for this device, or the evaluator is closed.
            InfrastructureError: if the machine failed; try again.
        """
        if not isinstance(text, str):
            raise UsageError(f"a submission is a str, not {type(text).__name__}")
        task = asked_for(task, variant)
        load_arch(arch)
        self.check_measures(arch)
        gpu = self.gpu(arch)
        workload = workload or default_workload(task, gpu)
        self.check_workload(task, workload, arch)
        drawn = conditions(task, workload, self._epoch, self._secret)
        setting = self._emulator_started()
        key = (*_key(text, task, arch, drawn, setting), *self._place(gpu))
        return self._memory.answer(key, lambda: self._judge(text, task, arch, drawn, setting, gpu))

    async def aevaluate(
        self,
        text: str,
        task: Task | str,
        arch: str = "h100",
        workload: str | None = None,
        *,
        variant: str | None = None,
    ) -> Verdict:
        """Judge `text` without blocking the event loop, up to the deadline of `ptxgym.judging`; see `evaluate`."""
        judge = partial(self.evaluate, text, task, arch, workload, variant=variant)
        return await judging.of(self).acall(judge)

    def check_workload(self, task: Task, name: str, arch: str = "h100") -> None:
        """Accept the name of a workload of `task` that can be judged here.

        Raises:
            UnknownNameError: if the task has no such workload.
            UsageError: if it is not for this device.
        """
        task.workload(name)
        if name == "hardware" and self.gpu(arch) is None:
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
            self._judges.clear()
        self._memory.forget()
        if finalizer is not None:
            finalizer()

    def __reduce__(self) -> tuple[Callable[..., Evaluator], tuple[Any, ...]]:
        """Pickle the configuration.

        Raises:
            TypeError: if it has a secret, a device or a cache of the caller's.
        """
        own = {
            "secret": self._own_secret,
            "device": not isinstance(self._chosen, str),
            "cache": self._cache is not None,
        }
        if given := " and ".join(name for name, is_own in own.items() if is_own):
            raise TypeError(
                f"an evaluator with a {given} of its own cannot be pickled: make it in the process that uses it, or "
                "leave these to PTXGYM_SECRET, PTXGYM_CACHE and the device's name"
            )
        if _SHARED.get((str(self._chosen), self._tier)) is self:
            return _shared, (self._chosen, self._tier)
        return _restored, (self._chosen, self._tier, self._epoch, self._random_schedules, *self._limits)

    def __copy__(self) -> Self:
        """Return the evaluator itself, as `__deepcopy__`."""
        return self

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

    def _judge(
        self, text: str, task: Task, arch: str, drawn: Conditions, setting: pipeline.Setting, gpu: Gpu | None
    ) -> Verdict:
        """Run the branch of the pipeline for the device that was chosen."""
        stress = conditions(task, "schedules", self._epoch, self._secret).cases[0]
        if gpu is None:
            verdict = pipeline.evaluate(text, task, arch, drawn, stress, setting)
            note = idle_gpu(arch) if self._chosen == "auto" else None
            if note is None:
                return verdict
            return verdict.model_copy(update={"notes": (*verdict.notes, note)})
        cases = measured.Drawn(
            drawn, self._timing_draws(task, drawn), conditions(task, "emulation", self._epoch, self._secret), stress
        )
        return measured.evaluate(text, task, arch, cases, measured.Setting(self._judge_of(gpu), self._tier, setting))

    def _timing_draws(self, task: Task, drawn: Conditions) -> tuple[Case, ...]:
        """Return the calls that are timed: the open ones, and for `publish` as many again of later epochs."""
        open_draws = task.workload(drawn.workload).draws  # a hidden draw may be made on the open shape
        found = [case for case in drawn.cases if case.draw in open_draws and not case.hidden]
        for more in range(1, measured.EXTRA_DRAWS[self._tier] + 1):
            later = conditions(task, drawn.workload, -more - self._epoch * 1000, self._secret)
            same = [case for case in later.cases if case.draw in open_draws and not case.hidden]
            found += [replace(case, name=f"{case.name}{more}") for case in same]
        return tuple(found)

    def _place(self, gpu: Gpu | None) -> tuple[str, ...]:
        """Return what of the GPU a verdict depends on."""
        return () if gpu is None else (gpu.uuid, gpu.name, gpu.driver, self._tier)

    def _emulator_started(self) -> pipeline.Setting:
        """Return the emulator's setting, with the device started at the first call."""
        with self._lock:
            if self._closed:
                raise UsageError("the evaluator is closed; make a new one")
            if self._setting is None:
                find_toolchain()  # before anything is started, say what is missing
                device, revision = self._chosen, None
                if isinstance(device, str):
                    from ptxgym.device.emulator.device import EmulatorDevice

                    emulator = EmulatorDevice(cache=self._cache)
                    self._end_with(emulator.close)
                    device, revision = emulator, emulator_revision()
                cache = self._cache or Cache()
                self._setting = pipeline.Setting(device, revision, cache, self._random_schedules, self._gates)
            return self._setting

    def _judge_of(self, gpu: Gpu) -> CudaJudge:
        """Return the judge of a GPU; its process starts with the first evaluation."""
        with self._lock:
            if self._closed:
                raise UsageError("the evaluator is closed; make a new one")
            judge = self._judges.get(gpu.uuid)
            if judge is None:
                judge = self._judges[gpu.uuid] = CudaJudge(gpu)
                self._end_with(judge.close)
            return judge

    def _end_with(self, close: Callable[[], None]) -> None:
        """Close something with this evaluator, or when it is forgotten."""
        self._started.append(close)
        if self._finalizer is None:
            self._finalizer = weakref.finalize(self, _close_all, self._started)

    def _forget_after_fork(self) -> None:
        """Drop what belongs to the parent process: its device, and locks that its threads may have held."""
        self._lock = threading.Lock()
        self._gates = pipeline.Gates.limited(*self._limits)
        self._setting = None
        self._judges = {}
        self._started = []
        self._memory.forked()
        if isinstance(self._finalizer, weakref.finalize):
            self._finalizer.detach()
        self._finalizer = None


def _close_all(closing: list[Callable[[], None]]) -> None:
    while closing:
        closing.pop()()


def _key(text: str, task: Task, arch: str, drawn: Conditions, setting: pipeline.Setting) -> Key:
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


def _secret_bytes(secret: object) -> bytes:
    if not isinstance(secret, str | bytes):
        raise UsageError(f"the secret must be a text, or None for the run's, not {type(secret).__name__}")
    if not secret:
        raise UsageError("the secret is empty, so that anyone could compute the inputs; pass one, or None")
    return secret.encode() if isinstance(secret, str) else secret


def _restored(
    device: str, tier: Tier, epoch: int, random_schedules: int, builds: int | None, runs: int | None
) -> Evaluator:
    """Make an evaluator of its pickled configuration."""
    return Evaluator(device, tier=tier, epoch=epoch, random_schedules=random_schedules, builds=builds, runs=runs)


def _shared(device: str, tier: Tier) -> Evaluator:
    """Return the shared evaluator; a function of the module, which cloudpickle takes by name."""
    return Evaluator.shared(device, tier)


_SHARED: weakref.WeakValueDictionary[tuple[str, str], Evaluator] = weakref.WeakValueDictionary()
_SHARED_LOCK = threading.Lock()
_ALIVE: weakref.WeakSet[Evaluator] = weakref.WeakSet()


def _after_fork() -> None:
    global _SHARED_LOCK
    _SHARED_LOCK = threading.Lock()
    for evaluator in list(_ALIVE):
        evaluator._forget_after_fork()


os.register_at_fork(after_in_child=_after_fork)
