"""Records of the core → findings: source lines in place of instruction indices, one per place, root cause first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ptxgym.verdict import Finding, Party, Severity

RECORD_DTYPE = np.dtype(
    [
        ("code", "S48"), ("message", "S384"), ("who", "S64", (2,)), ("did", "S192", (2,)), ("remedy", "S256"),
        ("inst", "<i4"), ("other_inst", "<i4"), ("warp", "<i4"), ("lane", "<i4"),
        ("cta", "<u8"), ("address", "<u8"), ("count", "<u8"), ("severity", "<u4"), ("fatal", "<u4"),
    ],
    align=True,
)  # fmt: skip
"""Mirrors `struct FindingRecord` of core.hpp."""

_SEVERITY = {0: Severity.NOTE, 1: Severity.WARNING, 2: Severity.ERROR}
_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
_CAUSES = ("barrier.divergent", "smem.out_of_array")
"""What leads to races: ranked before its equals in severity."""
_CONSEQUENCES = ("emulator.deadlock", "emulator.livelock", "mbarrier.tx_left", "smem.uninitialised")
"""What a fault causes rather than is: ranked after its equals in severity."""
_PLACE = re.compile(r"(?:\bline )?\{@(-?\d+)\}")
_LINE_LIMIT = 200


@dataclass(frozen=True)
class KernelSource:
    """Where the instructions of one kernel stand in the submission."""

    kernel: str
    """Name for `Finding.kernel`."""
    lines: Sequence[int]
    """Per instruction: line of the submission, 0 where it has none."""
    text: str = ""
    """The submission."""
    chains: Sequence[tuple[int, ...]] = field(default=())
    """Per instruction: its line and those of the calls through which it was inlined, innermost first, wrappers around
    one asm statement left out (`places.call_chains`); empty where unknown. A finding names the innermost."""

    @cached_property
    def _text_lines(self) -> list[str]:
        return self.text.removesuffix("\n").split("\n")  # as compilers count; splitlines() also breaks at a form feed

    def line(self, inst: int) -> int | None:
        """Return the line to report for an instruction."""
        if not 0 <= inst < len(self.lines):
            return None
        chain = self.chains[inst] if inst < len(self.chains) else ()
        return (chain[0] if chain else int(self.lines[inst])) or None

    def text_of(self, line: int | None) -> str | None:
        """Return the source line, stripped and bounded."""
        if line is None or not 0 < line <= len(self._text_lines):
            return None
        return self._text_lines[line - 1].strip()[:_LINE_LIMIT]

    def resolve(self, text: str) -> str:
        """Replace `{@instruction}` by `line N`."""

        def name(match: re.Match[str]) -> str:
            line = self.line(int(match[1]))
            return f"line {line}" if line else "an instruction without a source line"

        return _PLACE.sub(name, text)


def findings_of(records: NDArray[np.void], source: KernelSource) -> tuple[Finding, ...]:
    """Turn the records of one launch into findings, in the order of the records.

    Args:
        records: [records] of `RECORD_DTYPE`, in the order of first occurrence.
        source: Where the kernel's instructions stand.
    """
    return tuple(_finding(record, source) for record in records)


def _text(value: bytes) -> str:
    return value.split(b"\0", 1)[0].decode("utf-8", "replace")


def _finding(record: np.void, source: KernelSource) -> Finding:
    parties = []
    for index, inst in enumerate((int(record["inst"]), int(record["other_inst"]))):
        who = _text(record["who"][index])
        if not who:
            continue
        line = source.line(inst)
        did = source.resolve(_text(record["did"][index]))
        parties.append(Party(who=who, did=did, line=line, source_line=source.text_of(line)))
    line = source.line(int(record["inst"]))
    remedy = source.resolve(_text(record["remedy"]))
    return Finding(
        code=_text(record["code"]),
        severity=_SEVERITY[int(record["severity"])],
        message=source.resolve(_text(record["message"])),
        line=line,
        source_line=source.text_of(line),
        parties=tuple(parties),
        remedy=remedy or None,
        kernel=source.kernel,
        count=int(record["count"]),
    )


def rank(findings: Iterable[Finding], limit: int) -> tuple[Finding, ...]:
    """Merge findings of the same kind at the same lines, put the root cause first, and keep `limit`.

    Errors come before warnings, warnings before notes; within a severity causes come before what they lead to
    (deadlock, bytes that never came, unwritten memory), otherwise the order of occurrence stands.
    """
    merged: dict[tuple[str, str | None, tuple[int | None, ...]], Finding] = {}
    for finding in findings:
        key = (finding.code, finding.kernel, (finding.line, *(party.line for party in finding.parties)))
        known = merged.get(key)
        if known is None:
            merged[key] = finding
            continue
        first = known if _ORDER[known.severity] <= _ORDER[finding.severity] else finding
        merged[key] = first.model_copy(update={"count": known.count + finding.count})

    def place(finding: Finding) -> tuple[int, bool, bool]:
        return (
            _ORDER[finding.severity],
            not finding.code.startswith(_CAUSES),
            finding.code.startswith(_CONSEQUENCES),
        )

    return tuple(sorted(merged.values(), key=place)[:limit])
