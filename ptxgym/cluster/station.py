"""What a worker does with a step: compile, or run the pipeline of `Evaluator` on what was compiled."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from json import dumps

import numpy as np

import ptxgym
from ptxgym import native, pipeline
from ptxgym.build import Build, find_toolchain
from ptxgym.cache import Cache
from ptxgym.cluster.protocol import Kind, Request
from ptxgym.cluster.work import Built, Outcome, Step
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.model import Tier
from ptxgym.device.emulator.revision import emulator_revision
from ptxgym.dossier import Dossier
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.judge.conditions import conditions
from ptxgym.judge.judge import JUDGE_REVISION
from ptxgym.plan import RECORDER_REVISION
from ptxgym.task import Task, load_arch, task_sha256
from ptxgym.variants import load_variant
from ptxgym.verdict import Failure, Verdict

PROBE_LIMIT_S = 120.0
_BUILDS = "build"
"""Kind of the cache's entries that `ptxgym.build` makes."""


@dataclass(frozen=True)
class StationConfig:
    """What a worker must know from the start."""

    secret: bytes = field(repr=False)
    """Of the run."""
    epoch: int = 0
    tier: Tier = "standard"
    arch: str | None = None
    """The GPU generation that it measures for; None where it builds and emulates."""
    slots: int = 1
    cache: str | None = None
    """Folder of the builds; by default the user's, on the worker's node."""
    ship: bool = False
    """Whether builds travel with their files, since the next step may be done on another node."""
    pinned: bool = False
    """Whether the worker takes one core for itself, so that as many workers as cores share a machine well."""
    maker: str = "ptxgym.cluster.station:Station"
    """What does the steps: `module:callable`, called with this configuration."""


@dataclass(frozen=True)
class Description:
    """What a worker says of itself once it is ready."""

    node: str
    versions: Mapping[str, str]
    """Equal among the workers of a service: what verdicts depend on."""
    gpu: Gpu | None = None
    pid: int = field(default_factory=os.getpid)

    @property
    def place(self) -> str:
        """Node, and GPU where there is one."""
        return self.node if self.gpu is None else f"{self.node} {self.gpu.name} {self.gpu.uuid[:12]}"


@dataclass(frozen=True)
class Handover:
    """A build on its way from one worker to another."""

    key: str
    build_s: float
    files: Mapping[str, bytes] | None = None
    """By name, where it travels with them."""


class Station:
    """Does steps; safe to share among threads."""

    def __init__(self, config: StationConfig) -> None:
        """Check that this machine can do what is asked; the device starts with the first step.

        Raises:
            InfrastructureError: if there is no compiler, or its packages are missing.
            UsageError: if there is no GPU for the architecture.
        """
        self._config = config
        self._cache = Cache(config.cache)
        self._evaluator = Evaluator(
            "emulator" if config.arch is None else "cuda",
            tier=config.tier if config.arch is not None else "standard",
            secret=config.secret,
            epoch=config.epoch,
            cache=self._cache,
        )
        self._gpu = None if config.arch is None else self._evaluator.gpu(config.arch)
        find_toolchain()
        native.library("emulator")  # built once per machine; not while an evaluation waits

    def describe(self) -> Description:
        """Say where this is, and with what versions."""
        _, host = native.host_compiler()
        tools = {"compiler": find_toolchain().name, "host compiler": host}
        return Description(platform.node(), {**package_versions(), **tools}, self._gpu)

    def step(self, step: Step) -> Outcome:
        """Do a step.

        Raises:
            InfrastructureError: if the machine failed.
            UsageError: if this worker's content differs from the asker's.
        """
        request = step.request
        task = load_variant(request.task, request.variant)
        if task_sha256(task) != step.task_sha256:
            raise UsageError(
                f"task {task.label} on {platform.node()} is not the asker's: install the same ptxgym, and set "
                "PTXGYM_CONTENT to the same content, on all nodes"
            )
        if step.kind is Kind.BUILD:
            return self._build(request, task)
        handover = step.handover if isinstance(step.handover, Handover) else None
        if handover is not None:
            self._unpack(handover)
        verdict = self._evaluator.evaluate(request.text, task, request.arch, request.workload)
        return verdict if handover is None else _with_build(verdict, handover)

    def probe(self) -> None:
        """Try the GPU, in a process of its own, since a GPU that is not well may never answer.

        Raises:
            InfrastructureError: if it is not well; says what to do.
        """
        if self._gpu is None:
            return
        command = [sys.executable, "-m", "ptxgym.cluster.gpu_probe", dumps(asdict(self._gpu))]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": self._gpu.uuid}
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=PROBE_LIMIT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InfrastructureError(f"{self._gpu.name} cannot be probed: {error}") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise InfrastructureError(said[-1] if said else f"{self._gpu.name} is not well: status {done.returncode}")

    def _build(self, request: Request, task: Task) -> Outcome:
        drawn = conditions(task, request.workload or "emulation", self._config.epoch, self._config.secret)
        dossier = Dossier(request.text, task, request.arch, drawn.hash)
        start = time.perf_counter()
        built = pipeline.compiled(request.text, task, request.arch, self._cache, dossier)
        if isinstance(built, Failure):
            return dossier.failed(built)
        return Built(Handover(built.key, time.perf_counter() - start, self._packed(built)))

    def _packed(self, built: Build) -> Mapping[str, bytes] | None:
        if not self._config.ship:
            return None
        files = [file for file in built.folder.iterdir() if file.is_file() and file.name != "manifest.json"]
        return {file.name: file.read_bytes() for file in files}

    def _unpack(self, handover: Handover) -> None:
        """Put a build into this node's cache, where it is not there already."""
        if handover.files is None or self._cache.get(_BUILDS, handover.key) is not None:
            return
        with self._cache.staging() as folder:
            for name, data in handover.files.items():
                (folder / name).write_bytes(data)
            self._cache.publish(_BUILDS, handover.key, folder)


def package_versions() -> dict[str, str]:
    """Return what of the installed packages verdicts depend on; workers must have what who asks has."""
    return {
        "ptxgym": ptxgym.__version__,
        "emulator": emulator_revision(),
        "recorder": str(RECORDER_REVISION),
        "judge": str(JUDGE_REVISION),
        "numpy": np.__version__,
    }


def build_key(text: str, task: Task, arch: str) -> str:
    """Return what names a build within one service, whose workers have the same compilers."""
    parts = (text, task.signature.declaration(), load_arch(arch).code)
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()


def _with_build(verdict: Verdict, handover: Handover) -> Verdict:
    """Return the verdict with the time that the build took where it was made."""
    durations = {**verdict.measured.durations_s, "build": handover.build_s}
    return verdict.model_copy(update={"measured": verdict.measured.model_copy(update={"durations_s": durations})})
