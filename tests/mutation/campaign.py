"""Run every mutant of a kernel under several schedules and say what became of it."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ptxgym.build import Build
from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Bytes, Execution, RunOptions
from ptxgym.plan.model import LaunchPlan
from ptxgym.verdict import Failure, Finding, Severity, Status
from tests.mutation.operators import Operator, ptx_operators
from tests.mutation.operators_cluster import cluster_operators
from tests.mutation.operators_global import global_operators
from tests.mutation.operators_tcgen05 import tcgen05_operators
from tests.mutation.plans import plan_mutants
from tests.mutation.sites import KernelText
from tests.mutation.survivors import argued

SCHEDULES = (RunOptions(), RunOptions(schedule="lazy"), RunOptions(schedule="random", seed=1))
FIRST_FINDINGS = 3
"""A line counts as named where it stands in one of this many findings: nobody reads further."""
TOLERANCE = 0.01
UNCHANGED = "(unchanged)"
DEVICE = EmulatorDevice()


@dataclass(frozen=True)
class Target:
    """A correct kernel, ready to be mutated and run."""

    name: str
    build: Build
    plan: LaunchPlan
    buffers: Mapping[str, Bytes]
    expected: Mapping[str, np.ndarray]
    """Outputs as float64, by buffer; what is found there is bf16 or fp32, by its size."""
    stage_bytes: Mapping[str, int]
    larger: Callable[[], Target] | None = None
    """The same at a larger size, for what survives at this one."""


@dataclass(frozen=True)
class Result:
    """What became of one mutant."""

    kernel: str
    operator: str
    detail: str
    line: int
    """Line that was mutated; 0 for the host side."""
    outcome: str
    """`named`, `found` (a finding or fault at other lines), `wrong` (only the numbers tell) or `survived`."""
    first: str
    """Code and line of the first finding."""
    reason: str | None = None
    """Of a survivor: why it survives."""
    kind: str = ""
    """Of a survivor: `equivalent`, `unspecified` or `hole` (`survivors.Kind`)."""
    key: str = ""
    """Of its subject."""


@dataclass(frozen=True)
class Subject:
    """One mutant, before it runs."""

    key: str
    """Such as `wgmma/017`: the same in every run of the same compiler."""
    operator: str
    detail: str
    line: int
    """Line that was mutated; 0 for the host side."""
    lines: frozenset[int]
    """Lines that a good report names one of."""
    ptx: str | None
    """The changed PTX; None where the plan was changed."""
    plan: LaunchPlan

    @property
    def number(self) -> int:
        """Its number among the mutants of the PTX, or of the plan."""
        return int(self.key.partition("/")[2].removeprefix("p"))


def operators(stage_bytes: Mapping[str, int]) -> tuple[Operator, ...]:
    """Return all operators on PTX, for stages of that many bytes of operand `A` and `B`."""
    sizes = dict(stage_bytes)
    return (*ptx_operators(sizes), *tcgen05_operators(sizes), *cluster_operators(), *global_operators())


def subjects(target: Target) -> Iterator[Subject]:
    """Yield the mutants of a target, those of its PTX first."""
    kernel = KernelText(target.build.ptx.read_text())
    every_line = frozenset(s.line for s in kernel.statements)
    mutants = [m for op in operators(target.stage_bytes) for m in op.mutants(kernel)]
    for number, m in enumerate(mutants):
        lines = frozenset({m.line, *m.counterparts})
        yield Subject(f"{target.name}/{number:03}", m.operator, m.detail, m.line, lines, m.text, target.plan)
    for number, p in enumerate(plan_mutants(target.plan)):
        yield Subject(f"{target.name}/p{number:02}", p.operator, p.detail, 0, every_line, None, p.plan)


def campaign(
    target: Target,
    keep: Callable[[Subject], bool] = lambda subject: True,
    known: Mapping[str, Result] = MappingProxyType({}),
) -> Iterator[Result]:
    """Yield the result of the mutants of a target, PTX first.

    Args:
        target: The kernel.
        keep: Which mutants to run.
        known: Results of an earlier run, by key: their mutants are not run again.
    """
    for subject in filter(keep, subjects(target)):
        held = known.get(subject.key)
        if held is None or (held.operator, held.detail, held.line) != (subject.operator, subject.detail, subject.line):
            yield judged(target, subject)
        else:
            yield argue(held, source_lines(target))


def judged(target: Target, subject: Subject) -> Result:
    """Run one mutant, at the larger size too if it survives, and say what became of it."""
    with tempfile.TemporaryDirectory() as folder:
        build = _built(target, subject, Path(folder) / "mutant.ptx")
        outcome, first = run(target, build, subject)
        if outcome == "survived" and subject.ptx is not None and target.larger is not None:
            larger = target.larger()
            outcome, first = run(larger, build, dataclasses.replace(subject, plan=larger.plan), SCHEDULES[:1])
    of = subject.operator, subject.detail, subject.line
    return argue(Result(target.name, *of, outcome, first, key=subject.key), source_lines(target))


def _built(target: Target, subject: Subject, ptx: Path) -> Build:
    """Return the build with the mutant's PTX, which is written to `ptx`; nothing is compiled."""
    if subject.ptx is None:
        return target.build
    ptx.write_text(subject.ptx)
    return dataclasses.replace(target.build, ptx=ptx, key=f"{target.build.key}-{subject.key}")


def source_lines(target: Target) -> Sequence[str]:
    """Return the lines of the kernel."""
    return target.build.source.read_text().splitlines()


def argue(result: Result, source: Sequence[str]) -> Result:
    """Return the result with what is known of it if it survived; `source` are the lines of the kernel."""
    if result.outcome != "survived":
        return result
    known = argued(result.kernel, result.operator, source, result.line)
    if known is None:
        return dataclasses.replace(result, reason=None, kind="")
    return dataclasses.replace(result, reason=known.reason, kind=known.kind)


def run(target: Target, build: Build, subject: Subject, schedules: Sequence[RunOptions] = SCHEDULES) -> tuple[str, str]:
    """Run one mutant under some schedules; return its outcome and what was said first.

    A note alone notices nothing, but it names the place where the numbers are wrong.
    """
    findings: list[Finding] = []
    notes: list[Finding] = []
    wrong = refused = False
    for options in schedules:
        result = DEVICE.run(build, subject.plan, target.buffers, options)
        findings += _first(f for f in result.findings if f.severity is not Severity.NOTE)
        notes += _first(f for f in result.findings if f.severity is Severity.NOTE)
        if isinstance(result, Failure):
            refused |= result.status not in (Status.RUNTIME_FAULT, Status.HANG)
        elif options.schedule == "fair":
            wrong |= not _right(target, result)
        if findings:
            break
    said = findings or (notes if wrong else [])
    first = f"{said[0].code} at {said[0].line}" if said else "numbers" if wrong else "-"
    if any(subject.lines & _named(finding) for finding in said):
        return "named", first
    if findings or refused:
        return "found", first
    return ("wrong" if wrong else "survived"), first


def _first(findings: Iterable[Finding]) -> list[Finding]:
    """Return the first few findings; who waits in one deadlock is one of them."""
    found: list[Finding] = []
    number = 0
    for finding in findings:
        number += not (found and found[-1].code == finding.code == "emulator.deadlock")
        if number > FIRST_FINDINGS:
            break
        found.append(finding)
    return found


def _named(finding: Finding) -> set[int]:
    """Return the lines that a finding names: its own, its parties', and those in its message."""
    in_message = (int(line) for line in re.findall(r"\bline (\d+)", finding.message))
    return {line for line in (finding.line, *(party.line for party in finding.parties), *in_message) if line}


def _right(target: Target, result: Execution) -> bool:
    return right(target, result.buffers)


def right(target: Target, buffers: Mapping[str, Bytes]) -> bool:
    """Return whether outputs are what the kernel should compute."""
    for name, expected in target.expected.items():
        found = _values(buffers[name], expected.size).reshape(expected.shape)
        if not np.all(np.isfinite(found)):
            return False
        if np.linalg.norm(found - expected) > TOLERANCE * np.linalg.norm(expected):
            return False
    return True


def _values(data: Bytes, count: int) -> np.ndarray:
    if data.size == 4 * count:
        return data.view("<f4").astype(np.float64)
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def seeds(target: Target, count: int) -> Iterator[tuple[str, Finding | Failure | str]]:
    """Run the unchanged kernel under fair, lazy and `count` random schedules; yield everything that is not clean."""
    schedules = [RunOptions(), RunOptions(schedule="lazy")]
    schedules += [RunOptions(schedule="random", seed=seed) for seed in range(count)]
    for options in schedules:
        result = DEVICE.run(target.build, target.plan, target.buffers, options)
        name = f"{options.schedule} {options.seed}"
        if isinstance(result, Failure):
            yield name, result
            continue
        yield from ((name, finding) for finding in result.findings)
        if not _right(target, result):
            yield name, "the numbers are wrong"


def table(results: Iterable[Result]) -> str:
    """Return the campaign as a table: per operator the sites, what was noticed, what was named, what survived."""
    rows: dict[str, list[Result]] = {}
    for result in results:
        rows.setdefault(result.operator, []).append(result)
    lines = [f"{'operator':24} {'sites':>5} {'noticed':>8} {'named':>6} {'numbers':>8} {'survived':>9}"]
    total: list[Result] = []
    for operator, group in rows.items():
        lines.append(_row(operator, group))
        total += group
    lines.append(_row("all", total))
    return "\n".join(lines)


def _row(name: str, group: list[Result]) -> str:
    def count(outcome: str) -> int:
        return sum(r.outcome == outcome for r in group)

    survived = count("survived")
    return f"{name:24} {len(group):5} {len(group) - survived:8} {count('named'):6} {count('wrong'):8} {survived:9}"
