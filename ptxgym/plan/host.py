"""The submission's host code in sandboxed processes: what two recorded of the same calls, or why they failed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from ptxgym import native, sandbox
from ptxgym.build.demangle import name_functions
from ptxgym.build.model import Build
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.plan.events import ApiError, Recording, parse_record
from ptxgym.plan.model import Dim3, normalize_names
from ptxgym.plan.places import lines_of, places
from ptxgym.plan.profile import DeviceProfile
from ptxgym.plan.untold import untold
from ptxgym.tools import run_tool
from ptxgym.verdict import Diagnostic, Failure, Stage, Status

_SIGXCPU, _SIGKILL, _SIGSYS = 24, 9, 31
_MAX_ARGUMENTS = 46
_MAX_RECORD_BYTES = 80 << 20
"""Of each call."""
_MAX_PRINTED = 400
_MAX_SAID_BYTES = 1 << 16


class Argument(NamedTuple):
    """A pointer argument of `run`."""

    name: str
    role: Literal["input", "output"]
    size_bytes: int


@dataclass(frozen=True)
class Call:
    """One call of `run`: the same arguments are the same buffers."""

    arguments: Sequence[Argument]
    axes: Mapping[str, int]
    number: int
    """From 1."""
    again: int | None = None
    """The call whose buffers it gets again."""
    other_sizes: bool = False
    """Whether they differ from those of call 1; one of the two may be hidden, so no message tells them."""

    @property
    def buffers(self) -> dict[str, Argument]:
        """Names of its buffers in the record."""
        call = self.again or self.number
        return {each.name if call == 1 else f"{each.name}#{call}": each for each in self.arguments}

    @property
    def own(self) -> dict[str, str]:
        """The argument that each buffer is."""
        return {name: argument.name for name, argument in self.buffers.items()}

    def __str__(self) -> str:
        """Say which call it is."""
        if self.again is not None:
            how = f"the buffers and sizes of call {self.again} again"
        elif self.number == 1:
            how = "the first"
        else:
            how = "other buffers and sizes" if self.other_sizes else "other buffers, the sizes of call 1"
        return f"call {self.number} of `run` in one process ({how})"


@dataclass(frozen=True)
class RecordLimits:
    """What the host code may use."""

    cpu_s: int = 3
    """For each call, of which one may use what others left: a hundred times what honest host code takes."""
    wall_s: float = 60.0
    """For each call. Nothing in the sandbox can block, so running out of it without CPU time is the machine's fault."""
    memory_bytes: int = 1 << 30

    def of(self, calls: int) -> RecordLimits:
        """Return the limits of a process that makes so many calls."""
        return replace(self, cpu_s=self.cpu_s * calls, wall_s=self.wall_s * calls)


@dataclass(frozen=True)
class _Layout:
    """Where one recording sees device memory, and which clock and random numbers it sees."""

    base: int
    spacing: int
    seed: int


# Equal alignment (2 MiB), nothing in common otherwise. The high and the low halves of the bases differ, so that half a
# pointer does not look like a literal.
_LAYOUTS = (_Layout(0x1000_0020_0000, 0x20_0000, 1), _Layout(0x2B5A_6CE0_0000, 0x60_0000, 2))


def recordings(
    build: Build, calls: Sequence[Call], profile: DeviceProfile, limits: RecordLimits, confined: bool, hidden: bool
) -> tuple[Recording, Recording] | Failure:
    """Make the calls twice, at other addresses; where sizes are `hidden`, a failure tells none.

    Raises:
        InfrastructureError, UsageError: as `record`.
    """
    given = max(len(call.arguments) + len(call.axes) for call in calls)
    if given > _MAX_ARGUMENTS:
        raise UsageError(f"{given} arguments of run; the recorder passes {_MAX_ARGUMENTS}")
    given_up = threading.Event()
    run = functools.partial(_run, build, calls, profile, limits.of(len(calls)), confined, hidden, given_up)
    with ThreadPoolExecutor(len(_LAYOUTS)) as pool:
        try:
            outcomes = list(pool.map(run, _LAYOUTS))
        except BaseException:  # as by Ctrl-C: what host code is in would go on to its limit
            given_up.set()
            raise
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            return outcome
    first, second = (outcome for outcome in outcomes if isinstance(outcome, Recording))
    return first, second


def _run(
    build: Build,
    calls: Sequence[Call],
    profile: DeviceProfile,
    limits: RecordLimits,
    confined: bool,
    hidden: bool,
    given_up: threading.Event,
    layout: _Layout,
) -> Recording | Failure:
    """Run the host code once."""
    program = native.program("recorder")
    completed = sandbox.run(
        [program] if confined else [program, "--unconfined"],
        timeout_s=limits.wall_s,
        access=sandbox.Access(
            read=(build.library, Path("/etc/ld.so.cache")),
            execute=(program, build.library, *_shared_libraries(program)),
        ),
        limits=sandbox.Limits(cpu_s=limits.cpu_s, data_bytes=limits.memory_bytes, file_size_bytes=0, open_files=256),
        processes=False,
        stdin=_request(build, calls, profile, layout).encode(),
        max_output_bytes=_MAX_RECORD_BYTES * len(calls),
        error_tail_bytes=_MAX_SAID_BYTES,
        # Landlock does not hide whether a file exists; code that runs while the library is loaded may ask.
        filesystem="namespace" if sandbox.isolation().namespace == "ok" else None,
        given_up=given_up,
    )
    recording = parse_record(completed.stdout)
    failed = _failure_of(build, recording, completed, limits)
    if failed is not None:
        failed = untold(failed) if hidden else failed
        which = _which(calls, len(recording.calls), failed.code == "plan.host_hang")
        return failed.model_copy(update={"message": which + _without_folder(failed.message, build)})
    made = [call for call in calls if call.again is None]
    expected = [(name, argument.size_bytes) for call in made for name, argument in call.buffers.items()]
    if [(b.name, b.bytes) for b in recording.buffers if b.role == "argument"] != expected:
        return failure("plan.invalid", "the record's argument buffers are not those of `run`")
    return recording


def _which(calls: Sequence[Call], begun: int, of_all: bool) -> str:
    """Return how the message of a failure begins: in which call it was, if it is not the first, or of how many."""
    if not 0 < begun <= len(calls):
        return ""
    if of_all:
        return f"in {calls[begun - 1]}, of {len(calls)} that share their CPU time: "
    return f"in {calls[begun - 1]}: " if begun > 1 else ""


def _request(build: Build, calls: Sequence[Call], profile: DeviceProfile, layout: _Layout) -> str:
    """Return the lines that the recorder reads on standard input; see native/recorder/state.cpp."""
    lines = [f"library {build.library}", f"range {layout.base} {layout.spacing}", f"seed {layout.seed}"]
    lines += profile.request_lines()
    for kernel in build.kernels:
        dims = " ".join(_words(d) for d in (kernel.max_ntid, kernel.req_ntid, kernel.cluster))
        sizes = " ".join(map(str, kernel.param_bytes))
        numbers = f"{kernel.registers} {kernel.static_smem_bytes} {kernel.stack_bytes}"
        dims += f" {kernel.max_cluster_rank or 0} {int(kernel.blocks_are_clusters)}"
        lines.append(f"kernel {kernel.name} {numbers} {dims} {sizes}")
    for call in calls:
        if call.again is not None:
            lines.append(f"again {call.again - 1}")
            continue
        lines.append("call")
        lines += [f"buffer {name} {argument.size_bytes}" for name, argument in call.buffers.items()]
        lines += [f"axis {value}" for value in call.axes.values()]
    return "\n".join(lines) + "\n"


def _words(dim: Dim3 | None) -> str:
    return " ".join(map(str, dim or (0, 0, 0)))


def _failure_of(
    build: Build, recording: Recording, completed: sandbox.Completed, limits: RecordLimits
) -> Failure | None:
    """Say why a recording is none.

    Raises:
        InfrastructureError: if the machine is to blame.
    """
    failed = recording.failed
    if failed is not None:
        if failed.code.startswith("infra."):
            if recording.started:  # the submission may have written it
                return failure("plan.invalid", "the record of the host code claims a failure of the machine")
            raise InfrastructureError(f"recorder: {failed.message}")
        status = Status.LAUNCH_ERROR if failed.status == "launch_error" else Status.PLAN_ERROR
        context = _context(build, recording, completed) if failed.code in _CODES_WITH_CONTEXT else ""
        return failure(failed.code, failed.message + context, status, places(build, failed.frames))
    if completed.outcome in ("timeout", "killed"):
        raise InfrastructureError(
            f"the recorder was stopped after {completed.wall_s:.0f} s of wall time with {completed.cpu_s:.1f} s of CPU "
            "time; is the machine overloaded?"
        )
    if not recording.started:
        said = completed.stderr.decode(errors="replace").strip()[-500:]
        raise InfrastructureError(
            f"the recorder did not start ({completed.outcome} {completed.code}): {said or 'it said nothing'}"
        )
    if completed.outcome == "signalled":
        return _signalled(completed.code, limits)
    if completed.truncated and not recording.ended:
        return failure("plan.record_limit", "the host code asked for more operations and uploads than are recorded")
    if not recording.ended:
        status_text = f"with status {completed.code}"
        return failure("plan.host_exit", f"host code ended the process {status_text} before `run` returned")
    if recording.malformed is not None:
        return failure("plan.invalid", "the record of the host code is malformed")
    return None


def _without_folder(message: str, build: Build) -> str:
    """Leave out where the build lies: host code can ask for it (`dladdr`), and then its messages differ by machine."""
    for folder in (build.folder, *build.folder.parents[:2]):
        message = message.replace(str(folder), "<build>")
    return message


def _signalled(signal: int, limits: RecordLimits) -> Failure:
    if signal in (_SIGXCPU, _SIGKILL):
        used = f"host code used {limits.cpu_s} s of CPU time without returning from `run`"
        return failure(
            "plan.host_hang",
            f"{used} (constructors of static objects count): look for a loop that never ends; the host code is only to "
            "prepare launches, the work is the kernels'",
        )
    if signal == _SIGSYS:
        return failure("plan.host_syscall", "host code made a system call that it may not make, with signals blocked")
    return failure("plan.host_fault", f"host code died of signal {signal}")


_CODES_WITH_CONTEXT = frozenset({"plan.host_abort", "plan.host_exit", "plan.host_fault"})


def _context(build: Build, recording: Recording, completed: sandbox.Completed) -> str:
    """What may explain an end by the host code itself: calls that failed, the last thing it printed."""
    printed = " ".join(completed.stderr.decode(errors="replace").split())
    said = f'; it printed last: "{printed[-_MAX_PRINTED:]}"' if printed else ""
    return last_errors(build, recording) + said


def last_errors(build: Build, recording: Recording) -> str:
    """Return the end of a message: which call had failed last; nothing where none had."""
    if not recording.errors:
        return ""
    last = recording.errors[-1]
    return f"; {at_line(build, last)} had failed with {last.error}: {last.why}"


def at_line(build: Build, error: ApiError) -> str:
    """The call, with its line where it is known."""
    lines = lines_of(build, error.frames)
    return f"{error.call} at line {lines[0]}" if lines else error.call


def failure(code: str, message: str, status: Status = Status.PLAN_ERROR, where: tuple[Diagnostic, ...] = ()) -> Failure:
    """Return the failure, without what differs from build to build."""
    text = normalize_names(name_functions(message))
    return Failure(stage=Stage.PLAN, status=status, code=code, message=text, diagnostics=where)


@functools.cache
def _shared_libraries(program: Path) -> tuple[Path, ...]:
    """What the recorder links, which is also all that a submission's library may link."""
    done = run_tool(["ldd", program])
    if done.returncode:
        raise InfrastructureError(f"`ldd {program}` failed: {done.stderr.strip()[:500]}")
    words = (word for line in done.stdout.splitlines() for word in line.split())
    found = [Path(word) for word in words if word.startswith("/")]
    return tuple(dict.fromkeys(path for file in found for path in (file, file.resolve())))
