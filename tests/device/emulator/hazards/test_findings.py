"""Records of the core turned into findings: texts, lines, order."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgym.device.emulator.core import RECORD_BYTES
from ptxgym.device.emulator.findings import RECORD_DTYPE, KernelSource, findings_of, rank
from ptxgym.device.emulator.places import call_chains
from ptxgym.device.emulator.ptx import parse_module
from ptxgym.verdict import Finding, Severity

SOURCE = KernelSource("kernel", lines=(1, 2, 0, 3), text="one\n  two  \nthree\n")


def record(**values: object) -> NDArray[np.void]:
    records = np.zeros(1, RECORD_DTYPE)
    fields = {"code": b"smem.race", "severity": 2, "inst": 1, "other_inst": -1, "count": 1, **values}
    for name, value in fields.items():
        records[name][0] = value
    return records


def test_layout_is_that_of_the_core() -> None:
    assert RECORD_DTYPE.itemsize == RECORD_BYTES


def test_placeholders_become_lines() -> None:
    text = b"the store of line {@3} and that of {@2}"
    (finding,) = findings_of(record(message=text), SOURCE)
    assert finding.message == "the store of line 3 and that of an instruction without a source line"
    assert (finding.line, finding.source_line, finding.remedy, finding.kernel) == (2, "two", None, "kernel")


def test_parties_have_their_lines() -> None:
    (finding,) = findings_of(record(who=(b"warp 1", b"warp 0"), did=(b"reads", b"writes"), other_inst=3), SOURCE)
    assert [(p.who, p.did, p.line, p.source_line) for p in finding.parties] == [
        ("warp 1", "reads", 2, "two"),
        ("warp 0", "writes", 3, "three"),
    ]


def test_chains_take_precedence() -> None:
    source = KernelSource("kernel", lines=(1, 2), text="one\ntwo\nthree", chains=((), (3, 1)))
    (finding,) = findings_of(record(inst=1), source)
    assert (finding.line, finding.source_line) == (3, "three")
    (finding,) = findings_of(record(inst=0), source)
    assert finding.line == 1


def finding(code: str, severity: Severity = Severity.ERROR, line: int = 1, count: int = 1) -> Finding:
    return Finding(code=code, severity=severity, message=code, line=line, count=count)


def test_errors_first_causes_before_consequences() -> None:
    found = [
        finding("bulk.pending_at_exit", Severity.WARNING),
        finding("emulator.deadlock"),
        finding("tma.box_outside", Severity.NOTE),
        finding("async.overwrite"),
        finding("mbarrier.tx_overflow"),
    ]
    assert [f.code for f in rank(found, 4)] == [
        "async.overwrite",
        "mbarrier.tx_overflow",
        "emulator.deadlock",
        "bulk.pending_at_exit",
    ]


def test_copies_of_one_place_are_merged() -> None:
    found = [
        finding("smem.race", Severity.WARNING, count=2),
        finding("smem.race", count=3),
        finding("smem.race", line=2),
    ]
    merged = rank(found, 10)
    assert [(f.severity, f.line, f.count) for f in merged] == [(Severity.ERROR, 1, 5), (Severity.ERROR, 2, 1)]


PTX = """
.version 8.0
.target sm_90a
.address_size 64
.file 1 "run.cu"
.file 2 "header.hpp"
.visible .entry kernel()
{
.loc 1 40 1
bar.sync 0;
.loc 1 41 3
.loc 1 20 3, function_name $L1, inlined_at 1 41 3
.loc 1 10 3, function_name $L2, inlined_at 1 20 3
// begin inline asm
bar.sync 1;
// end inline asm
.loc 1 21 3, function_name $L1, inlined_at 1 41 3
bar.sync 2;
.loc 1 22 3, function_name $L1, inlined_at 1 41 3
.loc 2 99 3, function_name $L3, inlined_at 1 22 3
bar.sync 3;
.loc 1 23 3, function_name $L1, inlined_at 1 41 3
bar.sync 4;
.loc 1 24 3, function_name $L1, inlined_at 1 41 3
bar.sync 5;
ret;
}
"""


def test_call_chains_leave_wrappers_and_headers_out() -> None:
    """Line 10 is the only one of its function, so its call in line 20 stands for it; lines of headers never show."""
    function = parse_module(PTX, "run.cu").functions["kernel"]
    assert call_chains(function)[:6] == ((40,), (20, 41), (21, 41), (22, 41), (23, 41), (24, 41))


def test_a_helper_of_two_lines_is_a_wrapper_only_around_an_asm_statement() -> None:
    second = ".loc 1 11 3, function_name $L2, inlined_at 1 20 3\nbar.sync 6;\n"
    wrapper = PTX.replace("// end inline asm\n", f"// end inline asm\n{second}")
    chains = [
        call_chains(parse_module(text, "run.cu").functions["kernel"])
        for text in (wrapper, wrapper.replace("// begin inline asm", ""))
    ]
    assert [each[1:3] for each in chains] == [((20, 41), (20, 41)), ((10, 20, 41), (11, 20, 41))]


NESTED = """
.version 8.0
.target sm_90a
.address_size 64
.file 1 "run.cu"
.visible .entry kernel()
{
.loc 1 41 1
.loc 1 30 3, function_name $ROLE, inlined_at 1 41 1
.loc 1 20 3, function_name $OUTER, inlined_at 1 30 3
.loc 1 10 3, function_name $INNER, inlined_at 1 20 3
// begin inline asm
bar.sync 0;
// end inline asm
.loc 1 31 3, function_name $ROLE, inlined_at 1 41 1
.loc 1 20 3, function_name $OUTER, inlined_at 1 31 3
.loc 1 10 3, function_name $INNER, inlined_at 1 20 3
bar.sync 1;
ret;
}
"""


def test_call_chains_end_where_there_is_a_single_call() -> None:
    """OUTER is called from two lines of ROLE, which tell them apart; the only call of ROLE would not."""
    function = parse_module(NESTED, "run.cu").functions["kernel"]
    assert call_chains(function)[:2] == ((30, 41), (31, 41))


@pytest.mark.parametrize("line", [0, 4, None])
def test_no_text_for_lines_that_do_not_exist(line: int | None) -> None:
    assert SOURCE.text_of(line) is None


def test_lines_are_counted_as_the_compiler_counts_them() -> None:
    source = KernelSource("kernel", lines=(3,), text="one\n\x0ctwo\nthree")
    assert source.text_of(source.line(0)) == "three"
