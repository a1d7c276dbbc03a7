"""Runs an executor under Nsight Compute and reads what it counted.

Start-up is slow (1 s for the process, 1.05 s for the first kernel that is profiled) and profiling is not (0.6 s for a
GEMM that takes 0.7 ms), as measured on an H200 with Nsight Compute 2025.3.1. Therefore `start` brings up Nsight Compute
with an executor, `ready` has it profile an empty kernel of its own while the submission is still being compiled, and
`ProfiledExecutor.profile` gives it its plan. Nsight Compute lets one process profile at a time on a GPU (without its
lock file, all but one die), so where the plan is there already, the empty kernel would only cost its passes.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ptxgym.build import disassemble
from ptxgym.build.model import Build
from ptxgym.device.cuda import metrics
from ptxgym.device.cuda.executor import WARM_KERNEL, WARM_PROFILER, Executor, Memory, Poison
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.listing import Listing, Texts, read_listing, read_texts
from ptxgym.device.cuda.observe import duration_us, instruction_counts, kernel_profiles
from ptxgym.device.cuda.report import ReportError, ReportReader, reader_problem
from ptxgym.device.protocol import InstructionCount
from ptxgym.errors import InfrastructureError, PtxgymError, ToolchainError
from ptxgym.plan.model import LaunchPlan
from ptxgym.verdict import Failure, KernelProfile, Status

MOST_OBSERVED_LAUNCHES = 12
"""Plans with more launches are only counted: all metrics take 14 passes over every launch, counts a few."""
TIMEOUT_S = 60.0
OLDEST = (2023, 3)
"""Nsight Compute that knows Hopper's instructions and whose module reads its reports as here."""

_PLACES = ("usr/local/cuda/bin/ncu", "opt/nvidia/nsight-compute/*/ncu", "usr/local/cuda-*/bin/ncu")
"""Below `/`."""
_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
_PROCESS_STATUS = Path("/proc/self/status")
_CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38}
_ERROR = re.compile(r"==ERROR== (.+)")
_MAY_PROFILE = (
    "load the driver with `options nvidia NVreg_RestrictProfilingToAdminUsers=0`, or run with CAP_SYS_ADMIN "
    "(`docker run --cap-add SYS_ADMIN`); https://developer.nvidia.com/ERR_NVGPUCTRPERM says how"
)
_REASONS = (
    ("ERR_NVGPUCTRPERM", "this user may not read the GPU's counters (ERR_NVGPUCTRPERM)", _MAY_PROFILE),
    ("LibraryNotLoaded", "Nsight Compute cannot reach the GPU's counters here (LibraryNotLoaded)",
     "sandboxed runtimes such as gVisor hide them; use another"),
    ("Failed to find metric", "this Nsight Compute does not know the metrics asked for", "install 2025.3 or newer"),
    ("nsight-compute-lock", "another user's Nsight Compute holds its lock file", "set TMPDIR to a folder of your own"),
)  # fmt: skip


@dataclass(frozen=True)
class Unavailable:
    """Why Nsight Compute did not count."""

    reason: str
    """A clause, such as `this user may not read the GPU's counters (ERR_NVGPUCTRPERM)`."""
    fix: str
    """The way out, as a clause; empty where none is known."""
    by_kernel: bool = False
    """Whether it could count, but the submission's kernels did not end under it."""


@dataclass(frozen=True)
class Ncu:
    """An installed Nsight Compute."""

    path: Path
    version: str
    """Such as `2025.3.1.0`."""
    python: Path | None
    """Folder of `ncu_report`; None where it was not found."""


@dataclass(frozen=True)
class Profiled:
    """What Nsight Compute saw of one call."""

    counts: tuple[InstructionCount, ...]
    """Executed instructions of all launches."""
    kernels: tuple[KernelProfile, ...]
    """Per kernel, the longest first."""
    outputs: Mapping[str, Memory]
    """The results that were passed, filled by the profiled call."""
    launches: tuple[str, ...]
    """Kernels that were profiled, mangled, in order."""
    durations_us: tuple[float, ...]
    """Of each of `launches`."""
    printed: str
    version: str
    """Of Nsight Compute."""


@functools.cache
def find_ncu() -> Ncu | None:
    """Return Nsight Compute of this machine: `ncu` on PATH, else what lies in NVIDIA's usual places."""
    on_path = shutil.which("ncu")
    found = [path for place in _PLACES for path in sorted(Path("/").glob(place), reverse=True)]
    for path in (*([Path(on_path)] if on_path else []), *found):
        version = _version(path)
        if version is not None:
            return Ncu(path, version, _python_folder(path, version))
    return None


def ncu_obstacle() -> Unavailable | None:
    """Return why this process cannot profile, as far as the machine's settings tell; starts nothing on the GPU."""
    ncu = find_ncu()
    if ncu is None:
        return Unavailable(
            "Nsight Compute is not installed", "install `cuda-nsight-compute` of the CUDA toolkit, and put ncu on PATH"
        )
    if tuple(int(part) for part in ncu.version.split(".")[:2]) < OLDEST:
        return Unavailable(f"Nsight Compute {ncu.version} is too old", "install 2025.3 or newer")
    if ncu.python is None:
        return Unavailable(
            f"`extras/python` of Nsight Compute {ncu.version} ({ncu.path}) was not found",
            "install the full package; it holds the reader of reports",
        )
    if problem := reader_problem(ncu.python):
        return Unavailable(f"the reader of Nsight Compute's reports does not load: {problem}", "")
    return None if _may_profile() else _unavailable("ERR_NVGPUCTRPERM")


@functools.cache
def ncu_permission(gpu: Gpu) -> Unavailable | None:
    """Return why `gpu` cannot be profiled, by profiling an empty kernel once (2 s); None where it can.

    Raises:
        InfrastructureError: if the executor does not run even though Nsight Compute says nothing.
    """
    started = start(gpu)
    if isinstance(started, Unavailable):
        return started
    return started.probe()


def start(gpu: Gpu, *, observe: bool = True, ahead: bool = True) -> ProfiledExecutor | Unavailable:
    """Start Nsight Compute around a fresh executor; returns at once.

    Args:
        gpu: where.
        observe: collect everything for `KernelProfile`; otherwise `metrics.COUNTED` alone.
        ahead: there is no plan yet, so `ready` profiles an empty kernel until it comes.

    Raises:
        InfrastructureError: if the process cannot be started.
    """
    obstacle = ncu_obstacle()
    if obstacle is not None:
        return obstacle
    ncu = find_ncu()
    assert ncu is not None
    return ProfiledExecutor(gpu, ncu, observe, ahead)


def profile(
    gpu: Gpu,
    build: Build,
    plan: LaunchPlan,
    inputs: Mapping[str, Memory],
    results: Mapping[str, Memory],
    *,
    observe: bool = True,
    prewarmed: ProfiledExecutor | None = None,
    timeout_s: float = TIMEOUT_S,
    poison: Mapping[str, Poison] = {},
    on_gpu: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Profiled | Failure | Unavailable:
    """Profile one call in a fresh process: in `prewarmed` if that suits the plan, else in one that is started now.

    Plans with more than `MOST_OBSERVED_LAUNCHES` launches are only counted, whatever `observe` says. For other
    arguments and results see `ProfiledExecutor.profile`.
    """
    observe = observe and len(plan.launches) <= MOST_OBSERVED_LAUNCHES
    if prewarmed is not None and prewarmed.observes != observe:
        prewarmed.close()
        prewarmed = None
    started = prewarmed or start(gpu, observe=observe, ahead=False)
    if isinstance(started, Unavailable):
        return started
    return started.profile(build, plan, inputs, results, timeout_s=timeout_s, poison=poison, on_gpu=on_gpu)


class ProfiledExecutor:
    """An executor under Nsight Compute that waits for its one call; call `profile` or `close`."""

    def __init__(self, gpu: Gpu, ncu: Ncu, observe: bool, ahead: bool) -> None:
        """Start it; `start` calls this."""
        self.observes = observe
        self._ncu = ncu
        self._trouble: InfrastructureError | None = None
        folder = Path(tempfile.mkdtemp(prefix="ptxgym-ncu-"))
        self._report = folder / "report.ncu-rep"
        self._cleanup = weakref.finalize(self, shutil.rmtree, folder, True)
        assert ncu.python is not None
        self._reader = ReportReader(ncu.python)
        try:
            self._executor = Executor.start(
                gpu,
                wrapper=_command(ncu, self._report, observe),
                env={
                    "TMPDIR": str(_lock_folder(gpu)),
                    "NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1",  # nothing is written to $HOME
                }
                | (WARM_PROFILER if ahead else {}),
            )
        except BaseException:
            self._reader.close()
            self._cleanup()
            raise

    def connected(self) -> None:
        """Wait until Nsight Compute has started the executor, without the GPU; `profile` tells what is in the way."""
        self._attempt(self._executor.connected)

    def ready(self) -> None:
        """Wait until the empty kernel is profiled, if there is one; `profile` tells what is in the way."""
        self._attempt(self._executor.ready)

    def _attempt(self, step: Callable[[], object]) -> None:
        if self._trouble is None:
            try:
                step()
            except InfrastructureError as error:  # its process has ended, and cannot be asked again
                self._trouble = error

    def probe(self) -> Unavailable | None:
        """Wait until the empty kernel is profiled, end everything, and return what was in the way."""
        try:
            try:
                self._executor.ready()
            except InfrastructureError as error:
                return _refused(str(error), error)
            said = self._executor.close()
            return _refused(said) if _ERROR.search(said) else None
        finally:
            self.close()

    def profile(
        self,
        build: Build,
        plan: LaunchPlan,
        inputs: Mapping[str, Memory],
        results: Mapping[str, Memory],
        *,
        timeout_s: float = TIMEOUT_S,
        poison: Mapping[str, Poison] = {},
        on_gpu: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Profiled | Failure | Unavailable:
        """Run `plan` once, every launch profiled by replay, and end the process.

        Args:
            build: The submission.
            plan: One plan of it.
            inputs: By name, as for `Executor.call`.
            results: By buffer name; filled, and returned as `Profiled.outputs`.
            timeout_s: For the call with all its passes.
            poison: As for `Executor.call`.
            on_gpu: Entered while the GPU is used; what was counted is read outside of it.

        Returns:
            What was seen; the submission's fault under the profiler; or why nothing could be seen, a call that takes
            longer than `timeout_s` under the profiler among it.

        Raises:
            InfrastructureError: if the machine failed.
        """
        try:
            with ThreadPoolExecutor(1, "listing") as beside:
                listing = beside.submit(_disassembled, build)
                self.connected()
                with on_gpu():
                    try:
                        if self._trouble is not None:
                            raise self._trouble
                        refused = self._executor.load(build, (plan,))
                        if refused is not None:
                            return refused
                        called = self._executor.call(
                            0, inputs, results, timeout_s=timeout_s, profile=True, poison=poison
                        )
                    except InfrastructureError as error:
                        return _refused(str(error), error)
                    if isinstance(called, Failure) and called.status is Status.HANG:
                        reason = f"the call did not end within {timeout_s:g} s under Nsight Compute"
                        return Unavailable(reason, "", by_kernel=True)
                    said = self._executor.close()
                if _ERROR.search(said):
                    return _refused(said)
                if isinstance(called, Failure):
                    return called
                places, texts = listing.result()
                try:
                    launches = self._reader.read(self._report, WARM_KERNEL, texts)
                except ReportError as error:
                    return Unavailable(str(error), "")
                source = build.source.read_text(encoding="utf-8", errors="replace")
                return Profiled(
                    counts=instruction_counts(launches, places),
                    kernels=kernel_profiles(launches, places, source),
                    outputs=results,
                    launches=tuple(launch.kernel for launch in launches),
                    durations_us=tuple(duration_us(launch) for launch in launches),
                    printed=called.printed,
                    version=self._ncu.version,
                )
        finally:
            self.close()

    def close(self) -> None:
        """End the process if it still runs, and remove its files."""
        self._executor.kill()
        self._reader.close()
        self._cleanup()


def _command(ncu: Ncu, report: Path, observe: bool) -> list[str]:
    names = metrics.REQUESTED if observe else metrics.COUNTED
    sections = [part for name in metrics.SECTIONS for part in ("--section", name)] if observe else []
    return [
        str(ncu.path), "--config-file", "off", "--clock-control", "none", "--cache-control", "none",
        "--profile-from-start", "off", "--target-processes", "application-only", "--metrics", ",".join(names),
        *sections, "--force-overwrite", "--export", str(report),
    ]  # fmt: skip


def _lock_folder(gpu: Gpu) -> Path:
    """Return the folder whose lock file keeps this user's Nsight Computes on one GPU apart, made if need be.

    Its default place is shared by all users, who cannot open each other's file, and by all GPUs.

    Raises:
        InfrastructureError: if the folder is somebody else's.
    """
    folder = Path(tempfile.gettempdir()) / f"ptxgym-ncu-{os.getuid()}-{gpu.uuid}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise InfrastructureError(f"{folder} belongs to somebody else; remove it")
    return folder


def listing_of(build: Build) -> Listing:
    """Return the places of the build's instructions; empty without nvdisasm."""
    return _disassembled(build)[0]


def _disassembled(build: Build) -> tuple[Listing, Texts]:
    try:
        sass = disassemble(build).read_text(encoding="utf-8")
    except ToolchainError:
        return {}, {}
    return read_listing(sass, build.ptx.read_text(encoding="utf-8")), read_texts(sass)


def _refused(said: str, error: PtxgymError | None = None) -> Unavailable:
    """Return why Nsight Compute did not profile.

    Raises:
        PtxgymError: `error`, if Nsight Compute does not say that it is to blame.
    """
    found = _unavailable(said)
    if found.reason or error is None:
        return found
    raise error


def _unavailable(said: str) -> Unavailable:
    for sign, reason, fix in _REASONS:
        if sign in said:
            return Unavailable(reason, fix)
    first = _ERROR.search(said)
    return Unavailable(f"Nsight Compute says: {first[1].strip()}" if first else "", "")


def _may_profile() -> bool:
    """Whether the driver lets this process read counters, as far as the machine says so."""
    try:
        restricted = "RmProfilingAdminOnly: 1" in _DRIVER_PARAMETERS.read_text(encoding="utf-8")
        status = _PROCESS_STATUS.read_text(encoding="utf-8")
    except OSError:  # WSL, containers that hide it: profiling itself will tell
        return True
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    held = int(effective[1], 16) if effective else 0
    return not restricted or any(held >> bit & 1 for bit in _CAPABILITIES.values())


def _version(path: Path) -> str | None:
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"^Version (\d+\.\d+(?:\.\d+)*)", done.stdout, re.MULTILINE)
    return match[1] if match else None


def _python_folder(path: Path, version: str) -> Path | None:
    """Return the folder of `ncu_report` that belongs to this version."""
    short = ".".join(version.split(".")[:3])
    near = [top for start in (path, path.resolve()) for top in (start.parent, *start.parent.parent.glob(f"*{short}*"))]
    for top in (*near, *Path("/opt/nvidia/nsight-compute").glob(f"{short}*")):
        if (top / "extras/python/ncu_report.py").is_file():
            return (top / "extras/python").resolve()
    return None
