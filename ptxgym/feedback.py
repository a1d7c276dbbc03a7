"""Verdict → the text that an agent reads after a turn: the cause first, within a byte cap.

The text is a function of the verdict and the submission alone: no times except measured speed, no addresses, no paths.
Whatever a submission's own text or output says is shown behind a bar (`│`), line by line, with control characters made
visible, so that it cannot pass for the judge's words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ptxgym.build.demangle import function_name
from ptxgym.device.cuda.observe import profile_lines
from ptxgym.verdict import (
    Diagnostic,
    Evidence,
    Finding,
    KernelProfile,
    OutputError,
    Severity,
    Stage,
    Status,
    Timing,
    Verdict,
)

CAP_BYTES = 12_000
"""Longest feedback by default; 6,000 and 3,000 suit small contexts."""

_LINE_BYTES = 600
_SOURCE_BYTES = 160
_PROFILED_KERNELS = 3
_SOURCES = {"emulator": "the emulator at its own, smaller sizes"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")

_HEADLINES = {
    Status.OK: "Correct.",
    Status.REJECTED: "Rejected before compiling.",
    Status.COMPILE_ERROR: "Does not compile.",
    Status.PLAN_ERROR: "The host code of `run` failed.",
    Status.NOT_EMULATED: "Uses an instruction that the emulator does not execute.",
    Status.LAUNCH_ERROR: "A launch was refused.",
    Status.RUNTIME_FAULT: "A kernel faulted.",
    Status.HANG: "A kernel never ends.",
    Status.BUDGET: "Out of instruction budget.",
    Status.HAZARD: "The numbers are right, but the kernel is not: it has a hazard.",
    Status.WRONG_OUTPUT: "Wrong output.",
    Status.INTEGRITY: "Something that must not change was changed.",
    Status.INFRA: "The machine failed, not your kernel; this turn does not count.",
}


@dataclass(frozen=True)
class _Section:
    """A part of the feedback, with its share of the cap when not everything fits."""

    title: str
    lines: tuple[str, ...]
    share: float

    @property
    def text(self) -> str:
        return "\n".join((f"## {self.title}", *self.lines)) if self.title else "\n".join(self.lines)


def render(verdict: Verdict, source: str = "", *, cap_bytes: int = CAP_BYTES, notes: bool = False) -> str:
    """Render what an agent is told about one submission.

    Args:
        verdict: What the evaluator said.
        source: The submission, from which lines are quoted where the verdict names one without its text.
        cap_bytes: Longest text, in bytes of UTF-8; at least 1,000.
        notes: Whether to show note-severity findings (what real, fast kernels do and get away with). Those that can be
            why an output is wrong are shown with it anyway.

    Raises:
        ValueError: If `cap_bytes` is below 1,000.
    """
    if cap_bytes < 1000:
        raise ValueError(f"cap_bytes must be at least 1000, not {cap_bytes}")
    quote = _Quoter(source)
    wrong = verdict.status is Status.WRONG_OUTPUT
    shown = [f for f in verdict.findings if notes or f.severity is not Severity.NOTE or (wrong and f.explains_numbers)]
    is_cause = any(diagnostic.severity is Severity.ERROR for diagnostic in verdict.diagnostics)
    title = "Host code" if is_cause and verdict.stage is Stage.PLAN else "Compiler"
    compiler = _Section(title, tuple(_diagnostics(verdict.diagnostics, quote)), 0.25)
    sections = [
        _Section("", tuple(_head(verdict)), 0.15),
        *((compiler,) if is_cause else ()),
        _Section("Findings", (*_findings(shown, quote), *_not_shown(len(verdict.findings) - len(shown))), 0.25),
        _Section("Outputs", tuple(_outputs(verdict.outputs)), 0.12),
        _Section("Speed", tuple(_speed(verdict.measured.timing)), 0.06),
        _Section("Target instructions", tuple(_evidence(verdict.evidence)), 0.1),
        _Section("Nsight Compute", tuple(_profiles(verdict.measured.profile, quote)), 0.12),
        *(() if is_cause else (compiler,)),
        _Section("Launch plan", tuple((verdict.plan or "").splitlines()), 0.05),
        _Section("Printed by your kernels (not checked, not trusted)", tuple(_bars(verdict.printed)), 0.05),
        _Section("Not measured", tuple(f"- {note}" for note in verdict.notes), 0.03),
    ]
    return _fit([s for s in sections if s.lines], cap_bytes)


def _head(verdict: Verdict) -> Iterable[str]:
    device = verdict.provenance.device or "no device yet"
    told, warned = _HEADLINES[verdict.status], _warned(verdict)
    if warned:
        told = f"Correct here, but with {len(warned)} warning{'s' if len(warned) > 1 else ''}."
    yield f"{told} [{verdict.status} · {verdict.code}]"
    if verdict.message:
        yield _visible(verdict.message)
    if warned:
        first, label = warned[0], "First warning" if len(warned) > 1 else "Warning"
        where = "" if first.line is None else f" at line {first.line}"
        yield f"{label}: {first.code}{where}: {_visible(first.message)}"
    timing = verdict.measured.timing
    if timing is not None:
        interval = f"{timing.speedup_low:.2f} to {timing.speedup_high:.2f}"
        speed = f"speedup {timing.speedup:.2f} ({interval}) over {timing.baseline}"
    elif device == "emulator":
        speed = "emulated: no times"
    else:
        speed = "no times"
    yield f"Score {verdict.score:.2f} · stage {verdict.stage} · {speed}"


def _warned(verdict: Verdict) -> list[Finding]:
    """Return what a verdict of a right kernel warns of, gravest first: its score would send nobody to the findings."""
    if verdict.status is not Status.OK:
        return []
    grave = [finding for finding in verdict.findings if finding.severity is not Severity.NOTE]
    return sorted(grave, key=lambda finding: _SEVERITY_ORDER.index(finding.severity))


class _Quoter:
    """Quotes lines of the submission."""

    def __init__(self, source: str) -> None:
        self._lines = source.split("\n")  # as compilers count: a form feed or U+2028 ends no line

    def __call__(self, line: int | None, text: str | None) -> str | None:
        """Return `line 57 │ text`, or None where neither the verdict nor the submission has the line."""
        if text is None and line is not None and 0 < line <= len(self._lines):
            text = self._lines[line - 1]
        if line is None:
            return None
        return f"line {line} │ {_clip(_visible((text or '').strip()), _SOURCE_BYTES)}".rstrip(" │")


def _diagnostics(diagnostics: Sequence[Diagnostic], quote: _Quoter) -> Iterable[str]:
    for diagnostic in sorted(diagnostics, key=lambda d: d.severity is not Severity.ERROR):
        where = f"line {diagnostic.line}: " if diagnostic.line is not None else ""
        yield f"{diagnostic.severity}: {where}{_visible(diagnostic.message)}"
        quoted = quote(diagnostic.line, diagnostic.source_line)
        if quoted is not None:
            yield f"    {quoted}"


_SEVERITY_ORDER = (Severity.ERROR, Severity.WARNING, Severity.NOTE)


def _findings(findings: Sequence[Finding], quote: _Quoter) -> Iterable[str]:
    for finding in sorted(findings, key=lambda f: _SEVERITY_ORDER.index(f.severity)):
        times = f" ({finding.count} times)" if finding.count > 1 else ""
        source = f", seen by {_SOURCES.get(finding.source, finding.source)}" if finding.source else ""
        yield f"{finding.severity} {finding.code}{times}{source}: {_visible(finding.message)}"
        quoted = quote(finding.line, finding.source_line)
        if quoted is not None:
            yield f"    {quoted}"
        for party in finding.parties:
            yield f"    - {party.who}: {_visible(party.did)}"
            theirs = quote(party.line, party.source_line)
            if theirs is not None and party.line != finding.line:
                yield f"      {theirs}"
        if finding.remedy:
            yield f"    remedy: {finding.remedy}"


def _not_shown(notes: int) -> Iterable[str]:
    if notes:
        what = "1 note is not shown, on what" if notes == 1 else f"{notes} notes are not shown, on what"
        yield f"{what} real, fast kernels get away with"


def _outputs(outputs: Sequence[OutputError]) -> Iterable[str]:
    if not outputs:
        return
    width = max(6, *(len(o.name) for o in outputs))
    yield f"{'output':<{width}}  verdict  relative error / budget   worst tile / budget"
    for output in outputs:
        yield (
            f"{output.name:<{width}}  {'ok' if output.ok else 'WRONG':<7}  "
            f"{_number(output.relative_error):>9} / {_number(output.relative_budget):<11}   "
            f"{_number(output.worst_tile_error):>9} / {_number(output.tile_budget)}"
        )
    for output in (o for o in outputs if not o.ok):
        facts = [
            f"worst at {output.worst_region}" if output.worst_region else "",
            f"pattern: {output.pattern}" if output.pattern else "",
            f"on draw {output.draw}" if output.draw else "",
            f"closeness {output.closeness:.2f} (1 is right, 0.75 the most where it is wrong, 0 a trivial guess)",
            "PTXBench's tolerance would accept it" if output.ptxbench_ok else "",
        ]
        yield f"{output.name}: " + "; ".join(fact for fact in facts if fact)
        for explanation in output.explanations:
            yield f"    fits: {explanation}"


def _speed(timing: Timing | None) -> Iterable[str]:
    """What was measured, with all baselines; the best counts."""
    if timing is None:
        return
    rate = f", {timing.tflops:.0f} TFLOP/s" if timing.tflops is not None else ""
    yield (
        f"your kernel {timing.candidate_us:.1f} µs{rate}; {timing.baseline} {timing.baseline_us:.1f} µs: speedup "
        f"{timing.speedup:.3f} ({timing.speedup_low:.3f} to {timing.speedup_high:.3f}, {timing.pairs} pairs)"
    )
    for one in timing.baselines:
        counts = ", the one that counts" if one.name == timing.baseline else ""
        yield f"- {one.name}: {one.time_us:.1f} µs ({one.version}){counts}"
    if timing.roofline_us is not None:
        yield f"- at the GPU's peak rates: {timing.roofline_us:.1f} µs"


def _profiles(profiles: Sequence[KernelProfile], quote: _Quoter) -> Iterable[str]:
    """What Nsight Compute saw of the kernels that took longest, with their hottest lines."""
    for profile in profiles[:_PROFILED_KERNELS]:
        lines = profile_lines(profile)
        plain = len(lines) - len(profile.hot_lines)  # a line of text for each hot line comes last
        yield f"{_visible(function_name(profile.kernel))}: {lines[0]}"
        for line in lines[1:plain]:
            yield f"    {line}"
        for line, hot in zip(lines[plain:], profile.hot_lines, strict=True):
            yield f"    {line}"
            quoted = quote(hot.line, hot.source_line)
            if quoted is not None:
                yield f"        {quoted}"
    if len(profiles) > _PROFILED_KERNELS:
        yield f"and {len(profiles) - _PROFILED_KERNELS} kernels that take less time"


def _evidence(evidence: Evidence | None) -> Iterable[str]:
    if evidence is None or evidence.source == "none":
        return
    yield (
        f"coverage {evidence.coverage:.2f}: target instructions did {evidence.target_multiply_adds:,} of "
        f"{evidence.required_multiply_adds:,} multiply-adds, others did {evidence.other_multiply_adds:,} "
        f"(counted by {evidence.source} on workload {evidence.workload})"
    )
    if not evidence.target_ok:
        yield f"target_ok: no: {evidence.explanation or 'the output is not right'}"
    elif evidence.ablation == "depends":
        yield "target_ok: yes; the output depends on the target instructions' results"
    else:
        yield "target_ok: yes"
    if evidence.families:
        width = max(6, *(len(name) for name in evidence.families))
        yield f"{'family':<{width}}  {'warp instr.':>13}  {'thread instr.':>15}  {'multiply-adds':>15}"
        for name, count in sorted(evidence.families.items(), key=lambda item: (-item[1].multiply_adds, item[0])):
            yield (
                f"{name:<{width}}  {count.warp_instructions:>13,}  {count.thread_instructions:>15,}  "
                f"{count.multiply_adds:>15,}"
            )
    if evidence.tma_bytes:
        yield f"TMA moved {evidence.tma_bytes:,} bytes"


def _bars(printed: str) -> Iterable[str]:
    return (f"│ {_visible(line)}" for line in printed.splitlines())


def _number(value: float) -> str:
    return "inf" if math.isinf(value) else "nan" if math.isnan(value) else f"{value:.2e}"


def _visible(text: str) -> str:
    """Make control and direction-changing characters visible, and line breaks spaces."""
    joined = " ".join(text.split("\n")).replace("\t", "    ")
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", joined)


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


def _clip(text: str, size_bytes: int) -> str:
    """Cut the middle out of a line that is longer than `size_bytes`."""
    raw = text.encode(errors="replace")
    if len(raw) <= size_bytes:
        return raw.decode()
    keep = (size_bytes - 5) // 2
    return raw[:keep].decode(errors="ignore") + " … " + raw[-keep:].decode(errors="ignore")


def _fit(sections: Sequence[_Section], cap_bytes: int) -> str:
    """Join the sections; where they exceed the cap, cut each down to its share plus what the small ones leave over."""
    sections = [_Section(s.title, tuple(_clip(line, _LINE_BYTES) for line in s.lines), s.share) for s in sections]
    room = cap_bytes - 2 * len(sections)
    quotas = {id(s): _size(s.text) for s in sections}
    open_ = list(sections)
    while sum(quotas.values()) > room and open_:
        free = room - sum(quotas[id(s)] for s in sections if s not in open_)
        shares = sum(s.share for s in open_)
        small = [s for s in open_ if _size(s.text) <= free * s.share / shares]
        if not small:
            for section in open_:
                quotas[id(section)] = int(free * section.share / shares)
            break
        open_ = [s for s in open_ if s not in small]
    return "\n\n".join(_cut(s.text, quotas[id(s)]) for s in sections) + "\n"


def _cut(text: str, quota_bytes: int) -> str:
    """Keep the head and the tail of `text`, whole lines, two thirds of the room for the head."""
    if _size(text) <= quota_bytes:
        return text
    lines = text.split("\n")
    room = quota_bytes - _size(f"… {len(lines)} lines left out …\n")
    head: list[str] = []
    tail: list[str] = []
    for line in lines:
        if _size("\n".join([*head, line])) > room * 2 // 3:
            break
        head.append(line)
    for line in reversed(lines[len(head) :]):
        if _size("\n".join([*head, line, *tail])) > room:
            break
        tail.insert(0, line)
    left_out = len(lines) - len(head) - len(tail)
    return _clip("\n".join([*head, f"… {left_out} lines left out …", *tail]), max(quota_bytes, 16))
