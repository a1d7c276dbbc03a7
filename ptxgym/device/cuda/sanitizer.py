"""Looks for the cause of a failure: the executor under compute-sanitizer's tools, on a small call.

Never a gate: the tools accuse kernels that ship (wrong about asynchronous copies, single-threaded initialisation and
the like), so that only memcheck's findings, faults all, are errors.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from ptxgym.build.demangle import demangle
from ptxgym.build.entry import SUBMISSION_FILE
from ptxgym.build.model import Build
from ptxgym.device.cuda.executor import EXACT, UNFILLED, Executor, Memory
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.listing import Listing
from ptxgym.device.cuda.ncu import Unavailable, listing_of
from ptxgym.device.cuda.sanitizer_text import Access, Code, Index3, Report, read_reports, trouble
from ptxgym.device.emulator.findings import rank
from ptxgym.errors import InfrastructureError
from ptxgym.plan.model import LaunchPlan
from ptxgym.verdict import Finding, Party, Severity

Tool = Literal["memcheck", "racecheck", "synccheck", "initcheck"]
TOOLS: tuple[Tool, ...] = ("memcheck", "racecheck", "synccheck", "initcheck")
TIMEOUT_S = 30.0
MOST_FINDINGS = 10
PRINT_LIMIT = 500
"""Reports that a tool prints, one per thread and place; more are only counted by it."""
PADDING_BYTES = 1 << 20
RESERVED_SMEM_BYTES = 1024
"""The system's, at the start of every block's shared memory. Source: CUDA C++ Programming Guide, 9.0."""

_PLACES = ("usr/local/cuda/bin/compute-sanitizer", "usr/local/cuda-*/bin/compute-sanitizer")
_INVALID = re.compile(r"^Invalid __(\w+?)__ (\w+) of size ([\d,]+) bytes")
_UNINITIALISED = re.compile(r"^Uninitialized __(\w+?)__ memory (\w+) of size ([\d,]+) bytes")
_BARRIER = re.compile(r"^Barrier error detected\. (.+?)\.?$")
_GRANULARITY_BYTES = 2 << 20
_BUFFER_ALIGNMENT_BYTES = 512
_NEAR_NULL_BYTES = 1 << 16
_FAR_BYTES = 1 << 30
_DID = {"read": "reads", "write": "writes"}


@functools.cache
def find_sanitizer() -> Path | None:
    """Return compute-sanitizer: on PATH, else where CUDA's toolkit puts it; None where there is none."""
    on_path = shutil.which("compute-sanitizer")
    found = [path for place in _PLACES for path in sorted(Path("/").glob(place), reverse=True)]
    return Path(on_path) if on_path else next(iter(found), None)


@functools.cache
def sanitizer_version() -> str | None:
    """Return the version of compute-sanitizer, such as `2025.3.1.0`; None where there is none."""
    path = find_sanitizer()
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"^Version (\d[\d.]*\d)", done.stdout, re.MULTILINE)
    return match[1] if match else None


def sanitize(
    gpu: Gpu,
    build: Build,
    plan: LaunchPlan,
    inputs: Mapping[str, Memory],
    tools: Sequence[Tool] = TOOLS,
    *,
    timeout_s: float = TIMEOUT_S,
) -> tuple[Finding, ...] | Unavailable:
    """Run one call of `plan` under each of `tools`, all at once, and return what they found, faults first.

    Args:
        gpu: where.
        build: The submission.
        plan: A plan of it, for small sizes: racecheck slows a kernel down a hundredfold.
        inputs: By name, as for `Executor.call`.
        tools: which.
        timeout_s: For each tool; one that takes longer finds nothing.

    Returns:
        At most `MOST_FINDINGS` findings, or why there are none.

    Raises:
        InfrastructureError: if the executor does not come up.
    """
    path = find_sanitizer()
    if path is None:
        return Unavailable(
            "compute-sanitizer is not installed", "install `cuda-sanitizer` of the CUDA toolkit, and put it on PATH"
        )
    with ThreadPoolExecutor(len(tools) + 1, "sanitizer") as beside:
        listing = beside.submit(listing_of, build)
        said = list(beside.map(lambda tool: _run(gpu, path, tool, build, plan, inputs, timeout_s), tools))
    source = build.source.read_text(encoding="utf-8", errors="replace")
    found: list[Finding] = []
    for tool, text in zip(tools, said, strict=True):
        found += findings_of(text, tool, plan, listing.result(), source)
    problem = next((one for text in said if (one := trouble(text))), None)
    if not found and problem is not None:
        return Unavailable(f"compute-sanitizer says: {problem}", "")
    return rank(found, MOST_FINDINGS)


def _run(
    gpu: Gpu, path: Path, tool: Tool, build: Build, plan: LaunchPlan, inputs: Mapping[str, Memory], timeout_s: float
) -> str:
    """Return what a tool printed about one call."""
    # Bounds to the byte: buffers of their exact size, with room that is nobody's behind each.
    exact = ("--padding", str(PADDING_BYTES)) if tool == "memcheck" else ()
    command = [str(path), "--tool", tool, "--print-limit", str(PRINT_LIMIT), "--show-backtrace", "device",
               "--target-processes", "application-only", "--demangle", "no", *exact]  # fmt: skip
    env = {"memcheck": EXACT, "initcheck": UNFILLED}.get(tool, {})
    executor = Executor.start(gpu, wrapper=command, env=env)
    try:
        executor.ready()
        if executor.load(build, (plan,)) is None:
            executor.call(0, inputs, {}, timeout_s=timeout_s)
        return executor.close()
    except InfrastructureError as error:
        said = executor.close() or str(error)  # a tool that ended its application has still said why
        if read_reports(said) or trouble(said):
            return said
        raise
    finally:
        executor.kill()


def findings_of(text: str, tool: Tool, plan: LaunchPlan, listing: Listing, source: str) -> list[Finding]:
    """Return the findings in what `tool` printed, merged by place, in order of occurrence.

    Args:
        text: Output of compute-sanitizer.
        tool: Which printed it.
        plan: That ran: its kernels, and its buffers, by which addresses are named.
        listing: Places of the kernels' instructions.
        source: The submission.
    """
    reader = _Reader(tool, plan, listing, source.split("\n"))
    reports = _in_order(report for report in read_reports(text) if not _is_own(report))
    return list(rank((reader.finding(report) for report in reports), MOST_FINDINGS))


class _Reader:
    """Turns reports of one run into findings."""

    def __init__(self, tool: Tool, plan: LaunchPlan, listing: Listing, lines: Sequence[str]) -> None:
        self._tool = tool
        self._plan = plan
        self._listing = listing
        self._lines = lines
        self._kernels = tuple(dict.fromkeys(launch.kernel for launch in plan.launches))

    def finding(self, report: Report) -> Finding:
        """Return what a report says, in this project's words."""
        slug, message, remedy = self._words(report)
        line = self._line(report.code, report.frames)
        kernel = self._kernel(report.code, *report.frames)
        who = _who(report.thread, report.block) or "a thread"
        parties = [Party(who=who, did=message, line=line, source_line=self._text(line))]
        if report.others:
            parties = [self._party(report.title.removeprefix("Race: "), report.code)]
            parties += [self._party(kind, code) for kind, code in report.others]
        name = f"Kernel {_short(kernel or (report.frames or (report.code,))[-1].function)}"
        by = f" ({who})" if report.thread is not None else ""
        return Finding(
            code=f"sanitizer.{self._tool}.{slug}",
            severity=Severity.ERROR if self._tool == "memcheck" else Severity.WARNING,
            message=f"{name} {message}{f' at line {line}' if line else ''}{by}.",
            line=line,
            source_line=self._text(line),
            parties=tuple(parties),
            remedy=remedy,
            kernel=kernel,
            count=report.hazards,
        )

    def _words(self, report: Report) -> tuple[str, str, str]:
        """Return the end of the code, the predicate of the message, and the remedy."""
        title = report.title
        if found := _INVALID.match(title):
            return self._invalid(found[1], found[2], found[3], report)
        if found := _UNINITIALISED.match(title):
            message = f"{_DID.get(found[2], found[2])} {found[3]} bytes of {found[1]} memory that nothing wrote"
            return f"uninitialised_{found[1]}_{found[2]}", message, "write the memory before, or read less of it"
        if found := _BARRIER.match(title):
            said = found[1]
            return _slug(said), f"misuses a barrier: {said[0].lower()}{said[1:]}", _barrier_remedy(said)
        if report.others:
            kinds = " and a ".join(
                kind.split()[0].lower() for kind in (title.removeprefix("Race: "), report.others[0][0])
            )
            place = self._line(report.others[0][1])
            message = f"has a {kinds} of the same shared memory without order between them" + (
                f", the other at line {place}," if place and place != self._line(report.code) else ""
            )
            return "race", message, "put a barrier that both threads pass between the two accesses"
        if title.startswith("Trace/breakpoint trap"):
            return "trap", "executes a trap", "see which check of yours trips, or which asm traps"
        if title.startswith("Unknown Error"):
            message = "breaks off with an exception of the hardware"
            return "exception", message, "check mbarrier states and counts, descriptors and addresses there"
        return _slug(title), f"is accused: {title}", "see compute-sanitizer's documentation"

    def _invalid(self, space: str, did: str, size: str, report: Report) -> tuple[str, str, str]:
        verb = _DID.get(did, f"does an {did} of")
        if report.access is not None and report.access.fault == "misaligned":
            message = f"{verb} {size} bytes of {space} memory at an address that is no multiple of {size}"
            return f"misaligned_{space}_{did}", message, f"align the address to {size} bytes, or access less at once"
        where = self._where(space, report.access) if report.access is not None else ""
        message = f"{verb} {size} bytes of {space} memory out of bounds{where}"
        return f"invalid_{space}_{did}", message, "check the index against the size of what it indexes"

    def _where(self, space: str, access: Access) -> str:
        """Say where an address lies, without an address that differs from run to run."""
        if space == "shared":
            at = access.address - RESERVED_SMEM_BYTES
            return f", at byte {at:,} of its block's shared memory" if at >= 0 else ""
        if space != "global" or access.allocation_bytes is None:
            return ""
        if access.address < _NEAR_NULL_BYTES:
            return f", through a null pointer (offset {access.address:,})"
        if access.distance_bytes >= _FAR_BYTES:
            return ", far from every buffer"
        beside, slack = self._nearest(access.allocation_bytes)
        if not beside:
            return ""
        if access.side is None:
            return f", across the end of {beside}"
        if access.side == "before":
            return f", before the start of {beside}"
        return f", {access.distance_bytes - 1 + slack:,} bytes past the end of {beside}"

    def _nearest(self, allocation_bytes: int) -> tuple[str, int]:
        """Return which buffers an allocation can be, and the bytes between their end and that of the allocation."""
        for allocated in (lambda size: size, _mapped_bytes):
            found = [
                b for b in self._plan.buffers if b.role != "symbol" and allocated(b.size_bytes) == allocation_bytes
            ]
            if len(found) == 1:
                exact = found[0].size_bytes == allocation_bytes
                return found[0].name, 0 if exact else -found[0].size_bytes % _BUFFER_ALIGNMENT_BYTES
            if found:
                return f"one of {', '.join(b.name for b in found)}", 0
        return "", 0

    def _party(self, kind: str, code: Code) -> Party:
        line = self._line(code)
        did = f"{kind.split()[0].lower()}s shared memory"
        return Party(who="a thread", did=did, line=line, source_line=self._text(line))

    def _line(self, code: Code, frames: Sequence[Code] = ()) -> int | None:
        """Return the line to report; frames of inlined calls say less than the listing, which knows wrappers."""
        place = self._listing.get(self._kernel(code, *frames) or "", {}).get(code.offset)
        if place is not None:
            return place.site
        return code.line if code.file == SUBMISSION_FILE.removeprefix("/") else None

    def _kernel(self, *codes: Code) -> str | None:
        """Return the mangled name of the kernel in which `codes` lie, which may be printed mangled or readable."""
        for code in codes:
            for kernel in self._kernels:
                if code.function == kernel or code.function.startswith(f"${kernel}$"):
                    return kernel
            clone = re.match(r"\[clone (.+?)\] ", code.function)
            name = _short(clone[1] if clone else code.function)
            readable = [kernel for kernel in self._kernels if _short(kernel) == name]
            if len(readable) == 1:
                return readable[0]
        return None

    def _text(self, line: int | None) -> str | None:
        return self._lines[line - 1].strip()[:200] if line and line <= len(self._lines) else None


def _in_order(reports: Iterable[Report]) -> list[Report]:
    """Return reports by kernel as they ran, by place in its code, by block and thread: warps come in any order."""
    kernels: dict[str, int] = {}

    def key(report: Report) -> tuple[int, int, Index3, Index3]:
        kernel = (report.frames or (report.code,))[-1].function
        nowhere = (0, 0, 0)
        place = kernels.setdefault(kernel, len(kernels)), report.code.offset
        return *place, (report.block or nowhere)[::-1], (report.thread or nowhere)[::-1]

    return sorted(reports, key=key)


def _is_own(report: Report) -> bool:
    """Whether a report is about a kernel of the executor, which cleans up between calls."""
    return report.code.function.startswith("ptxgym_")


def _short(function: str) -> str:
    """Return the plain name of a function, mangled or readable, without scopes, template arguments and parameters."""
    name = re.sub(r"\((?:anonymous namespace)\)::|<unnamed>::", "", demangle(function))
    match = re.match(r"(?:[\w:]+ )?(?:\w+::)*(\w+)", name)
    return match[1] if match else name


def _mapped_bytes(size_bytes: int) -> int:
    """Return what the executor maps for a buffer; see memory.cpp."""
    return -(-size_bytes // _GRANULARITY_BYTES) * _GRANULARITY_BYTES


def _who(thread: Index3 | None, block: Index3 | None) -> str | None:
    if thread is None or block is None:
        return None
    return f"thread {_index(thread)} of block {_index(block)}"


def _index(index: Index3) -> str:
    return f"({index[0]}, {index[1]}, {index[2]})"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:40]


def _barrier_remedy(said: str) -> str:
    if "ivergent" in said:
        return "let all threads that the barrier counts reach it, outside of divergent branches"
    if "init" in said:
        return "initialise the mbarrier, and make that visible (fence, barrier), before it is used"
    return "check who initialises the barrier, with which count, and who arrives"
