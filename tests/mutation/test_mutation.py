"""A part of the campaign on every run: a mutant of every operator, and the kernels that they are made of, unchanged.

`python -m tests.mutation` runs all; docs/mutation.md has its tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from ptxgym.device.protocol import RunOptions
from tests.mutation.campaign import (
    DEVICE,
    Result,
    Subject,
    Target,
    argue,
    judged,
    operators,
    seeds,
    source_lines,
    subjects,
)  # fmt: skip
from tests.mutation.cross_cta import CROSS_CTA
from tests.mutation.document import document
from tests.mutation.sites import KernelText
from tests.mutation.survivors import SURVIVORS, Survivor, argued
from tests.mutation.targets import SOLUTIONS, STAGE_BYTES, load

HOPPER = ("oracle", "wgmma")
BLACKWELL = ("gemm_pair_b200", "gemm_b200", "attn_bwd_b200")
SAMPLED = (*HOPPER, *BLACKWELL, *CROSS_CTA)
"""Kernels that have a site for every operator, the quickest of each generation first."""
DESCRIPTORS = tuple(f"{part}.{letter}" for letter in "AB" for part in ("descriptor.stride", "descriptor.swizzle"))
PLAN_OPERATORS = ("map.swizzle", "map.box", "map.bounds", "map.stride", "launch.smem", "launch.grid", "launch.block")
OPERATORS = tuple(dict.fromkeys([*(operator.name for operator in operators(STAGE_BYTES)), *PLAN_OPERATORS]))

NUMBERS = frozenset({"column.mma_a", "column.st", "launch.grid"})
"""Changes that only the numbers show: what is multiplied is there, and in order."""
EQUIVALENT = frozenset(
    {"drop.mbarrier_init_fence", "move.proxy_fence", "drop.tcgen05_fence_before", "drop.tcgen05_relinquish"}
    | {"drop.warp_sync", "descriptor.leading.A", "launch.smem"}
)
"""Changes that survive at the sampled site, each for a reason that survivors.py gives."""


@cache
def target(name: str) -> Target:
    """Return a kernel without its larger size: the campaign has time for that."""
    return dataclasses.replace(load(name), larger=None)


@cache
def representatives(name: str) -> dict[str, Subject]:
    """Return a mutant of a kernel by operator: the first that nobody says to survive, or else the first."""
    found: dict[str, Subject] = {}
    faults: dict[str, Subject] = {}
    source = source_lines(target(name))
    for subject in subjects(target(name)):
        found.setdefault(subject.operator, subject)
        if subject.operator not in faults and argued(name, subject.operator, source, subject.line) is None:
            faults[subject.operator] = subject
    return found | faults


def representative(operator: str, names: Sequence[str]) -> Result:
    """Run the mutant of the first kernel that has one which nobody says to survive, or else of the first."""
    having = [name for name in names if operator in representatives(name)]
    assert having, f"no kernel of {', '.join(names)} has a site for {operator}"
    for name in having:
        subject = representatives(name)[operator]
        if argued(name, operator, source_lines(target(name)), subject.line) is None:
            return judged(target(name), subject)
    return judged(target(having[0]), representatives(having[0])[operator])


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_mutant_of_every_operator(operator: str) -> None:
    """It is named at its line; or wrong; or survives for a reason, without a false alarm."""
    found = representative(operator, SAMPLED)
    wanted = "wrong" if operator in NUMBERS else "survived" if operator in EQUIVALENT else "named"
    assert found.outcome == wanted, found
    assert (found.reason is not None) == (wanted == "survived"), found


@pytest.mark.parametrize("operator", DESCRIPTORS)
def test_descriptors_of_tcgen05_are_read_too(operator: str) -> None:
    """The operators on descriptors have one name for both generations; the sample above takes Hopper's."""
    assert representative(operator, BLACKWELL).outcome == "named"


@pytest.mark.parametrize("name", SAMPLED)
def test_the_kernel_is_clean(name: str) -> None:
    """No finding of any severity, and right numbers, under a fair, a lazy and a random schedule."""
    assert list(seeds(target(name), 1)) == []


def test_mutants_differ_from_the_kernel() -> None:
    kernel = KernelText(target("wgmma").build.ptx.read_text())
    original = "\n".join(kernel.lines)
    mutants = [m for operator in operators(STAGE_BYTES) for m in operator.mutants(kernel)]
    assert len(mutants) > 50
    assert all(m.text != original for m in mutants)
    assert all(m.line for m in mutants)


def test_operands_in_tensor_memory_have_no_descriptor() -> None:
    """The product whose A lies in tensor memory has one descriptor, that of B."""
    kernel = KernelText(target("attn_bwd_b200").build.ptx.read_text())
    of_a, of_b, in_tensor_memory = (
        {m.line for o in operators(STAGE_BYTES) if o.name == name for m in o.mutants(kernel)}
        for name in ("descriptor.stride.A", "descriptor.stride.B", "column.mma_a")
    )
    assert of_a | in_tensor_memory == of_b
    assert not of_a & in_tensor_memory


def test_arguments_are_about_known_operators_and_kernels() -> None:
    assert {known.operator for known in SURVIVORS} <= set(OPERATORS)
    assert {known.kernel for known in SURVIVORS} <= set(SOLUTIONS)


def test_an_argument_holds_for_its_line_alone() -> None:
    source = ["__syncthreads();", "fence_after_sync();", "if (first) wait();", "fence_after_sync();"]
    fenced, other = (argued("gemm_b200", "drop.tcgen05_fence_after", source, line) for line in (2, 4))
    assert isinstance(fenced, Survivor)
    assert other is None
    assert argued("wgmma", "drop.tcgen05_fence_after", source, 2) is None


def test_a_survivor_that_nobody_argued_makes_no_page() -> None:
    found = Result("wgmma", "drop.expect", "", 1, "survived", "-", key="wgmma/000")
    assert argue(found, ["int x;"]).kind == ""
    with pytest.raises(ValueError, match="wgmma/000"):
        document([found])


@pytest.mark.parametrize("options", [RunOptions(), RunOptions(schedule="random", seed=2)], ids=lambda o: o.schedule)
def test_findings_do_not_depend_on_host_threads(tmp_path: Path, options: RunOptions) -> None:
    subject = target("wgmma")
    kernel = KernelText(subject.build.ptx.read_text())
    wanted = ("drop.wgmma_wait", "bytes.less", "stage.arrive", "descriptor.start.B", "count.init_more")
    for operator in operators(STAGE_BYTES):
        mutant = next(operator.mutants(kernel), None)
        if operator.name not in wanted or mutant is None:
            continue
        ptx = tmp_path / f"{operator.name}.ptx"
        ptx.write_text(mutant.text)
        build = dataclasses.replace(subject.build, ptx=ptx, key=operator.name)
        one, two = (
            DEVICE.run(build, subject.plan, subject.buffers, dataclasses.replace(options, threads=threads))
            for threads in (1, 2)
        )
        assert one.findings
        assert one.findings == two.findings
