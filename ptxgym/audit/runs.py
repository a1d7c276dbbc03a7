"""Checks of the emulated runs: findings go to the items that they speak against, hangs to what is waited for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from ptxgym.audit.facts import Facts, Run
from ptxgym.audit.items import item_of
from ptxgym.audit.observation import Observation, kept, unknown, violated
from ptxgym.device.emulator.findings import rank
from ptxgym.device.protocol import Execution
from ptxgym.judge import numbers
from ptxgym.judge.correctness import indexed
from ptxgym.task import Tensor
from ptxgym.verdict import Failure, Finding, Severity

REMARKS = frozenset({"tma.box_outside"})
"""Notes about what is done on purpose where a grid is rounded up."""
_HANG = "emulator.deadlock"
_NEVER_ENDS = ("emulator.instruction_budget", "emulator.endless_loop")
_MISSING = re.compile(r"(\d+) of \d+ arrivals missing, tx-count (-?\d+)")
_ROOTS = (
    ("columns of tensor memory", "tmem.columns"),
    ("waits for registers", "launch.registers"),
    ("cluster barrier", "launch.cluster"),
    ("other CTA of its pair", "tcgen05.collective"),
)
"""Words of a deadlock about what no waiting thread can bring, and the items that they speak against."""


def check_findings(facts: Facts) -> Iterator[Observation]:
    """Errors and warnings violate their item; a note, which real kernels get away with, leaves it open.

    A run of the latest completion that hangs or faults where the fair one ends well leaves the item open too.
    """
    merged = rank((_softened(finding, run, facts) for run in facts.runs for finding in run.findings), 10_000)
    bytes_differ = any(item_of(finding.code) == "mbarrier.bytes" for finding in merged)
    for finding in merged:
        found = _observed(finding, item_of(finding.code))
        if found is not None:
            yield found
    if any(isinstance(run.result, Failure) for run in facts.runs):
        yield from _hang([one for one in merged if one.code == _HANG and one.severity is Severity.ERROR], bytes_differ)
    for failure in {run.result.code: run.result for run in facts.runs if isinstance(run.result, Failure)}.values():
        if failure.code in _NEVER_ENDS:
            remedy = "A wait or loop that never ends, or far more work than the operator needs."
            yield unknown("mbarrier.waits", failure.message, remedy, code=failure.code)
        elif not failure.findings:
            yield unknown(item_of(failure.code), failure.message, code=failure.code)


def _softened(finding: Finding, run: Run, facts: Facts) -> Finding:
    """Only what the fair schedule shows is certain: see `pipeline`."""
    fair_ended = all(isinstance(one.result, Execution) for one in facts.runs if one.schedule == "fair")
    if run.schedule == "fair" or isinstance(run.result, Execution) or not fair_ended:
        return finding
    return finding.model_copy(update={"severity": Severity.NOTE})


def _observed(finding: Finding, item: str) -> Observation | None:
    if finding.severity is not Severity.NOTE:
        return violated(item, finding.message, finding.remedy, finding.line, finding.code)
    if finding.code in REMARKS:
        return kept(item, finding.message, finding.line)
    return unknown(item, finding.message, finding.remedy, finding.line, finding.code)


def _hang(waiting: Sequence[Finding], bytes_differ: bool) -> Iterator[Observation]:
    """Say against which items besides `mbarrier.waits` a hang speaks.

    Who waits for columns, registers or bytes waits for nobody else. Missing arrivals may be the fault of whoever should
    arrive, of the count, of a parity, or of what the others wait for: that much stays open.
    """

    def against(item: str, finding: Finding) -> Observation:
        return violated(item, finding.message, finding.remedy, finding.line, finding.code)

    roots = [(item, one) for one in waiting for words, item in _ROOTS if words in one.message]
    if roots:
        yield from (against(item, one) for item, one in roots)
        return
    named = [one for one in waiting if "at barrier" in one.message]
    if len(named) == len(waiting):
        yield from (against("barrier.named", one) for one in named)
    for finding in waiting:
        missing = _MISSING.search(finding.message)
        if missing is None or bytes_differ:
            continue
        if int(missing[1]) == 0 and int(missing[2]):
            yield against("mbarrier.bytes", finding)
        else:
            for item in ("mbarrier.arrivals", "mbarrier.parity"):
                yield unknown(item, finding.message, finding.remedy, finding.line, finding.code)
    if len(named) < len(waiting):
        for one in named:
            yield unknown("barrier.named", one.message, one.remedy, one.line, one.code)


def check_results(facts: Facts) -> Iterator[Observation]:
    """Is every output element written, by whom, and are the inputs as they were? No number is judged."""
    for run in facts.runs:
        if isinstance(run.result, Failure) or run.schedule != "fair":
            continue
        axes = run.where
        for tensor in facts.task.outputs:
            yield _written(run.result, tensor, run, axes)
        changed = [
            t.name for t in facts.task.inputs if not np.array_equal(run.result.buffers[t.name], run.before[t.name])
        ]
        if changed:
            yield violated(
                "input.kept", f"{', '.join(changed)} changed at {axes}", "Write into outputs and workspaces only."
            )
        else:
            yield kept("input.kept", f"{len(facts.task.inputs)} inputs unchanged at {axes}")
    yield from _writers(facts)


def _written(result: Execution, tensor: Tensor, run: Run, axes: str) -> Observation:
    missing = numbers.unwritten(result.buffers[tensor.name], tensor, run.axes)
    left = int(missing.sum())
    if not left:
        return kept("output.written", f"{tensor.name}: all {missing.size:,} elements at {axes}")
    first = indexed(tensor, [str(index) for index in np.argwhere(missing)[0].tolist()])
    return violated(
        "output.written",
        f"{tensor.name}: {left:,} of {missing.size:,} elements unwritten at {axes}, first {first}",
        "The grid, or the loop of a persistent kernel, must cover the axes of this call.",
    )


def _writers(facts: Facts) -> Iterator[Observation]:
    """Name the instructions that wrote to global memory."""
    result = facts.runs[0].result if facts.runs else None
    if not isinstance(result, Execution):
        return
    by_tma = any(count.form.startswith(("cp.async.bulk", "cp.reduce.async.bulk")) and ".global.shared" in count.form
                 and count.thread for count in result.counts)  # fmt: skip
    by_threads = any(count.form.startswith("st.global") and count.thread for count in result.counts)
    names = [name for name, used in (("tensor or bulk copies", by_tma), ("stores of threads", by_threads)) if used]
    if names:
        yield kept("output.written", f"by {' and '.join(names)}")
