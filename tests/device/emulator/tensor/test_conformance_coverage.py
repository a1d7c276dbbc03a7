"""Every asynchronous and matrix form that the emulator executes, and every arithmetic one, has a recorded case."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ptxgym.device.emulator.decode_grammar import RULES, Rule
from ptxgym.device.emulator.ptx import parse_module
from tests.device.emulator.tensor.harness import CONFORMANCE, compile_ptx
from tests.device.emulator.tensor.test_golden import ABOUT, WAITING
from tests.gpu.cases import all_cases
from tests.gpu.cases.ptx import module

COVERED = (
    "wmma",
    "tensormap",
    "cp",
    "mbarrier",
    "ldmatrix",
    "stmatrix",
    "movmatrix",
    "mma",
    "wgmma",
    "redux",
    "elect",
    "barrier",
    "bar",
)
COVERED += (
    "atom",
    "red",
    "cvt",
    "rcp",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "lg2",
    "ex2",
    "tanh",
    "div",
    "fma",
    "mul",
    "add",
)
COVERED += ("sub", "min", "max", "set", "setp", "shfl", "vote", "match", "prmt", "lop3", "bfe", "bfi", "shf", "dp4a")
COVERED += ("fence", "membar", "griddepcontrol", "setmaxnreg", "mapa", "getctarank", "ld", "ldu", "st", "prefetch")
COVERED += (
    "prefetchu",
    "applypriority",
    "createpolicy",
    "nanosleep",
    "pmevent",
    "addc",
    "subc",
    "mad",
    "madc",
    "mad24",
)
COVERED += (
    "sad",
    "rem",
    "abs",
    "neg",
    "selp",
    "slct",
    "testp",
    "copysign",
    "not",
    "cnot",
    "shl",
    "shr",
    "brev",
    "bfind",
)
COVERED += ("clz", "popc", "and", "or", "xor", "bra", "brx", "call", "ret", "exit", "trap", "brkpt", "activemask")
ELSEWHERE = re.compile(
    r"^createpolicy\.cvt"  # of a property that only CUDA's own headers make
    r"|^prefetch\.const\.tensormap$"  # no kernel's map lies there
    r"|\.f32x2$|^cvt.*(?:e2m1x2|e2m3x2|ue8m0x2)|swizzle_atomicity"  # of sm_100
    r"|^cvt\.rs|^redux.*\.f32$|^(?:ld|st)matrix.*\.b8|tile::(?:gather|scatter)4"
    r"|^bar\.warp\.sync$|^(?:bar|barrier).*(?:red\.popc|arrive)"  # by their other spelling
)


def matches(rule: Rule, opcode: str) -> bool:
    base, *modifiers = opcode.split(".")
    return base == rule.opcode and (form := rule.match(modifiers)) is not None and rule.build(form) is not None


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Opcodes of the kernels of all cases that an H200 has run, or that wait for one."""
    cases = [case for case in all_cases() if case.name in ABOUT["status"] or case.name in WAITING]
    kernels = {case.kernel for case in cases}
    texts = (
        compile_ptx(CONFORMANCE, tmp_path_factory.mktemp("coverage")),
        module([case.ptx for case in cases if case.ptx]),
    )
    return {
        instruction.opcode
        for text in texts
        for entry in parse_module(text).entries
        if entry.name in kernels
        for instruction in entry.body.instructions
    }


@pytest.mark.parametrize("base", COVERED)
def test_every_form_has_a_case(executed: set[str], base: str) -> None:
    opcodes = [opcode for opcode in executed if opcode.split(".")[0] == base]
    missing = [
        rule.text()
        for rule in RULES[base]
        if not any(matches(rule, opcode) for opcode in opcodes) and not ELSEWHERE.search(rule.text())
    ]
    assert missing == []


def test_every_kernel_of_the_file_has_a_case(tmp_path: Path) -> None:
    written = {entry.name for entry in parse_module(compile_ptx(CONFORMANCE, tmp_path)).entries}
    assert written == {case.kernel for case in all_cases() if not case.ptx}
