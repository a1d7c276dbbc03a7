"""Random programs of loads, stores and barriers: a race is reported exactly where two accesses are not kept apart.

The expectation is computed from the program alone: barriers of the whole CTA cut it into sections, and two accesses
race if they lie in the same section, come from different warps, share a byte, and one of them is a store.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ptxgym.device.protocol import Execution, RunOptions
from ptxgym.verdict import Severity
from tests.device.emulator.hazards.harness import Kernels, launch, ptx_build

WARPS, BYTES = 3, 32
TYPES = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


class Act(NamedTuple):
    """One access by lane 0 of a warp."""

    warp: int
    section: int
    store: bool
    size: int
    offset: int

    @property
    def bytes(self) -> set[int]:
        return set(range(self.offset, self.offset + self.size))


@st.composite
def acts(draw: st.DrawFn) -> Act:
    size = draw(st.sampled_from(tuple(TYPES)))
    offset = draw(st.integers(0, BYTES // size - 1)) * size
    return Act(draw(st.integers(0, WARPS - 1)), draw(st.integers(0, 2)), draw(st.booleans()), size, offset)


def racing(program: list[Act]) -> bool:
    return any(
        a.section == b.section and a.warp != b.warp and (a.store or b.store) and a.bytes & b.bytes
        for a, b in itertools.combinations(program, 2)
    )


def ptx_of(program: list[Act]) -> str:
    """Write the program: first one warp writes every byte, then each section, a barrier after each."""
    lines = [f"st.shared.u64 [data+{at}], %rd1;" for at in range(0, BYTES, 8)]
    body = ["setp.eq.and.u32 %p2, %r2, 0, %p1;", *(f"@%p2 {line}" for line in lines), "bar.sync 0;"]
    number = itertools.count(1)
    for section in range(3):
        for warp in range(WARPS):
            body.append(f"setp.eq.and.u32 %p2, %r2, {warp}, %p1;")
            for act in (a for a in program if (a.section, a.warp) == (section, warp)):
                kind = TYPES[act.size]
                register = {1: "%h1", 2: "%h1", 4: "%r4", 8: "%rd2"}[act.size]
                # Stores differ in value: a race of equal values would be a warning only.
                body.append(f"mov.{'u16' if act.size < 3 else kind} {register}, {next(number) if act.store else 0};")
                target = f"[data+{act.offset}]"
                body.append(
                    f"@%p2 st.shared.{kind} {target}, {register};"
                    if act.store
                    else f"@%p2 ld.shared.{kind} {register}, {target};"
                )
        body.append("bar.sync 0;")
    text = "\n".join(body)
    return f"""
.version 8.0
.target sm_90a
.address_size 64
.visible .entry program(.param .u64 out)
{{
.reg .pred %p<3>;
.reg .b16 %h<2>;
.reg .b32 %r<5>;
.reg .b64 %rd<3>;
.shared .align 16 .b8 data[{BYTES}];
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;
and.b32 %r3, %r1, 31;
setp.eq.u32 %p1, %r3, 0;
mov.u64 %rd1, 0;
{text}
ret;
}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=st.lists(acts(), min_size=2, max_size=7), seed=st.integers(0, 3))
def test_a_race_is_reported_exactly_where_there_is_one(folder: Path, program: list[Act], seed: int) -> None:
    text = ptx_of(program)
    ptx = folder / f"{abs(hash(text))}.ptx"
    ptx.write_text(text)
    options = RunOptions(schedule="random", seed=seed) if seed else RunOptions()
    result = launch(Kernels(ptx, ptx_build(ptx, ptx)), "program", block=32 * WARPS, options=options)
    assert isinstance(result, Execution), result
    errors = [finding for finding in result.findings if finding.severity is not Severity.NOTE]
    assert bool(errors) == racing(program), (errors, program)
    assert {finding.code for finding in errors} <= {"smem.race"}
