"""Source lines of SASS: nvdisasm's listing, read into the place of every instruction.

An asm statement usually stands in a small wrapper (`mbarrier_wait`, `tma_load`) that is called from several places. The
line of the call says more than that of the wrapper, so that a hot line or a fault is put there, as in the emulator
(`device.emulator.places`). Source: the output of nvdisasm 13.0 with `--print-line-info-inline`, and the directives
`.loc … inlined_at` of PTX, ISA 11.5.4.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ptxgym.build.entry import SUBMISSION_FILE
from ptxgym.device.emulator.places import WRAPPER_LINES

_SECTION = re.compile(r"^\t\.section\t\.text\.([^,\s]+),")
_LINE = re.compile(r'^\t//## File "([^"]*)", line (\d{1,9})( inlined at "[^"]*", line \d+)?')
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(\S+)")
_TEXT = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(\S.*?)\s*;")
_WGMMA = re.compile(r"[HIQB]GMMA\b")
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(")
_LOC = re.compile(
    r"^\s*\.loc\s+(\d+)\s+(\d{1,9})\s+\d+(?:\s*,\s*function_name\s+\S+\s*,\s*inlined_at\s+(\d+)\s+(\d{1,9})\s+\d+)?"
)
_FILE = re.compile(r'^[ \t]*\.file[ \t]+(\d+)\s+"([^"]*)"', re.MULTILINE)
_INLINED = re.compile(r"^[ \t]*\.loc\s+(\d+)\s+(\d{1,9})\s+\d+\s*,\s*function_name\s+(\S+?)\s*,", re.MULTILINE)


@dataclass(frozen=True)
class Place:
    """Where an instruction stands in the submission."""

    line: int
    """Of the statement itself."""
    site: int
    """Of the innermost call that is not of a wrapper: the line to report."""


Listing = Mapping[str, Mapping[int, Place]]
"""Mangled kernel → byte offset of the instruction in its code → place; instructions without one are left out."""
Texts = Mapping[str, Mapping[int, str]]
"""Mangled kernel → byte offset of the instruction in its code → the instruction as text."""


def read_listing(sass: str, ptx: str) -> Listing:
    """Return the places of every kernel's instructions.

    Args:
        sass: `build.disassemble`'s text.
        ptx: the PTX of the same build, which tells wrappers from functions.
    """
    wrappers = wrapper_lines(ptx)
    wgmma = _wgmma_places(ptx, wrappers)
    kernel = ""
    listing: dict[str, dict[int, Place]] = {}
    places: dict[int, Place] = {}
    chain: list[int] = []
    listed = False  # whether an instruction came since the chain began
    for text in sass.splitlines():
        if found := _LINE.match(text):
            if listed:
                chain, listed = [], False
            if found[1] == SUBMISSION_FILE:
                chain.append(int(found[2]))
        elif found := _INSTRUCTION.match(text):
            listed = True
            if _WGMMA.match(found[2]) and len(wgmma.get(kernel, ())) == 1:
                (places[int(found[1], 16)],) = wgmma[kernel]
            elif chain:
                places[int(found[1], 16)] = Place(chain[0], site(chain, wrappers))
        elif found := _SECTION.match(text):
            kernel, chain, listed = found[1], [], False
            places = listing.setdefault(kernel, {})
    return listing


def read_texts(sass: str) -> Texts:
    """Return the instructions in `build.disassemble`'s text, guard predicates included."""
    texts: dict[str, dict[int, str]] = {}
    found: dict[int, str] = {}
    for line in sass.splitlines():
        if instruction := _TEXT.match(line):
            found[int(instruction[1], 16)] = instruction[2]
        elif section := _SECTION.match(line):
            found = texts.setdefault(section[1], {})
    return texts


def site(chain: list[int], wrappers: Collection[int]) -> int:
    """Return the first line of `chain` (innermost first) outside of wrappers, or its last."""
    return next((line for line in chain if line not in wrappers), chain[-1])


def wrapper_lines(ptx: str) -> frozenset[int]:
    """Return the lines of the submission that lie in wrappers: inlined functions of at most `WRAPPER_LINES` lines."""
    own = _own_files(ptx)
    lines: dict[str, set[int]] = defaultdict(set)
    for file, line, function in _INLINED.findall(ptx):
        if file in own:
            lines[function].add(int(line))
    return frozenset(line for found in lines.values() if len(found) <= WRAPPER_LINES for line in found)


def _own_files(ptx: str) -> set[str]:
    return {number for number, name in _FILE.findall(ptx) if name == SUBMISSION_FILE}


def _wgmma_places(ptx: str, wrappers: Collection[int]) -> dict[str, set[Place]]:
    """Return per kernel where its PTX has wgmma: ptxas gives HGMMA no line, so that it seems to be at another."""
    own = _own_files(ptx)
    found: dict[str, set[Place]] = defaultdict(set)
    kernel, chain = "", list[int]()
    for line in ptx.splitlines():
        if entry := _ENTRY.search(line):
            kernel, chain = entry[1], []
        elif location := _LOC.match(line):
            frames = ((location[1], location[2]), (location[3], location[4]))
            chain = [int(number) for file, number in frames if file in own]
        elif "wgmma.mma_async" in line and chain:
            found[kernel].add(Place(chain[0], site(chain, wrappers)))
    return found
