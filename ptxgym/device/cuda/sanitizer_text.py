"""What compute-sanitizer prints, read into reports. Source: outputs of version 2025.3.1, see tests/golden/sanitizer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

Index3 = tuple[int, int, int]

_MARK = "========="
_FRAME = "Device Frame: "
_AT = re.compile(
    r"(?P<function>\S.*?)\+0x(?P<offset>[0-9a-f]+)(?: in (?P<file>[^:\[\]]+):(?P<line>\d+))?"
    r"(?: \[(?P<hazards>[\d,]+) hazards?\])?$"
)
_THREAD = re.compile(r"^by thread \((\d+),(\d+),(\d+)\) in block \((\d+),(\d+),(\d+)\)")
_ACCESS = re.compile(r"^(?:Access to|Address) 0x(?P<address>[0-9a-f]+)(?: is (?P<fault>[a-z ]+))?$")
_NEAR = re.compile(
    r"^and is (?:inside|(?P<distance>[\d,]+) bytes (?P<side>before|after)) the nearest allocation at 0x[0-9a-f]+"
    r" of size (?P<size>[\d,]+) bytes"
)
_RACE = re.compile(r"^(?:Error|Warning|Info): Race reported between (?P<first>.+? access) at (?P<place>.+)$")
_RACE_OTHER = re.compile(r"^and (?P<other>.+? access) at (?P<place>.+)$")
_TROUBLE = re.compile(r"^(?:Error|Internal Sanitizer Error|Device not supported)\b.*")


@dataclass(frozen=True)
class Code:
    """A place in the code of a kernel."""

    function: str
    """As printed: a kernel, or a device function; mangled, one that was not inlined is `$KERNEL$FUNCTION`, readable
    `[clone KERNEL] FUNCTION`."""
    offset: int
    """Bytes from the start of the kernel's code, in device functions too."""
    file: str | None
    """Name of the source file without its folder."""
    line: int | None


@dataclass(frozen=True)
class Access:
    """The address of a bad access."""

    address: int
    fault: str | None
    """`out of bounds`, `misaligned`; None where the tool says none."""
    allocation_bytes: int | None = None
    """Of the nearest allocation; None in other state spaces than global."""
    side: str | None = None
    """`before` or `after` that allocation; None inside of it."""
    distance_bytes: int = 0
    """From the allocation's first byte, or past its last: 1 is the next byte."""


@dataclass(frozen=True)
class Report:
    """One thing that a tool found."""

    title: str
    """Its first line, such as `Invalid __global__ write of size 4 bytes`."""
    code: Code
    frames: tuple[Code, ...] = ()
    """Of the calls that led there, the kernel last."""
    thread: Index3 | None = None
    block: Index3 | None = None
    access: Access | None = None
    others: tuple[tuple[str, Code], ...] = ()
    """Of a race: the other accesses, as (`Read access`, place)."""
    hazards: int = 1
    """Of a race: how many pairs of accesses there were."""


def read_reports(text: str) -> tuple[Report, ...]:
    """Return the reports in what compute-sanitizer printed, in order; complaints about API calls are left out."""
    found = []
    for title, details in _blocks(text):
        race = _RACE.match(title)
        report = _race(race, details) if race else _report(title, details)
        if report is not None:
            found.append(report)
    return tuple(found)


def trouble(text: str) -> str | None:
    """Return what kept compute-sanitizer from its work, in its own words; None where nothing did."""
    for title, _ in _blocks(text):
        if _TROUBLE.match(title) and not _RACE.match(title):
            return title
    return None


def _blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield every unindented line behind a mark with the indented ones that follow it, indentation removed."""
    title: str | None = None
    details: list[str] = []
    for line in text.splitlines():
        if not line.startswith(_MARK):
            continue
        rest = line[len(_MARK) + 1 :]
        if rest.startswith(" ") and title is not None:
            details.append(rest.strip())
            continue
        if title is not None:
            yield title, details
        title, details = (rest.strip() or None), []
    if title is not None:
        yield title, details


def _report(title: str, details: list[str]) -> Report | None:
    code = thread = block = access = None
    frames = []
    for detail in details:
        if detail.startswith("at ") and code is None:
            code = _code(detail.removeprefix("at "))
        elif detail.startswith(_FRAME) and (frame := _code(detail.removeprefix(_FRAME))):
            frames.append(frame)
        elif found := _THREAD.match(detail):
            numbers = [int(number) for number in found.groups()]
            thread, block = (numbers[0], numbers[1], numbers[2]), (numbers[3], numbers[4], numbers[5])
        elif found := _ACCESS.match(detail):
            access = Access(int(found["address"], 16), found["fault"])
        elif access is not None and (found := _NEAR.match(detail)):
            distance = _number(found["distance"] or "0")
            access = Access(access.address, access.fault, _number(found["size"]), found["side"], distance)
    return Report(title, code, tuple(frames), thread, block, access) if code is not None else None


def _race(first: re.Match[str], details: list[str]) -> Report | None:
    places = [(first["first"], first["place"])]
    places += [(found["other"], found["place"]) for detail in details if (found := _RACE_OTHER.match(detail))]
    codes = [(kind, _code(place)) for kind, place in places]
    counts = [found["hazards"] for _, place in places if (found := _AT.match(place)) and found["hazards"]]
    known = tuple((kind, code) for kind, code in codes if code is not None)
    if not known:
        return None
    hazards = _number(counts[-1]) if counts else 1
    return Report(f"Race: {known[0][0]}", known[0][1], others=known[1:], hazards=hazards)


def _code(text: str) -> Code | None:
    found = _AT.match(text)
    if found is None:
        return None
    line = int(found["line"]) if found["line"] else None
    return Code(found["function"], int(found["offset"], 16), found["file"], line)


def _number(text: str) -> int:
    return int(text.replace(",", ""))
