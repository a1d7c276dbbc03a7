"""At which size a plan could not be recorded is said, and the hidden one is not."""

from __future__ import annotations

import re

import pytest

from ptxgym.evaluator import Evaluator
from ptxgym.judge.conditions import Case, Conditions
from ptxgym.recording import at_size
from ptxgym.task import Task
from ptxgym.verdict import Status
from tests.bad_kernels import EMPTY_KERNEL, HEAD, SIGNATURE

PRINTS = "#include <cstdio>\n#include <cstdlib>\n"
PUBLIC = "(M == 256 && N == 512 && K == 576 || K == 320)"


def launching(grid: str) -> str:
    return f"{HEAD}{EMPTY_KERNEL}{SIGNATURE} {{ kernel<<<{grid}, 32, 0, stream>>>(C); }}\n"


def test_sizes_are_named_but_the_first_and_the_hidden() -> None:
    def case(m: int, hidden: bool = False) -> Case:
        return Case("c", {"M": m, "N": 2}, "normal", 1, hidden)

    drawn = Conditions("emulation", 0, (case(4), case(4), case(8, hidden=True)), "hash")
    assert at_size(drawn, {"M": 4, "N": 2}) == ""
    assert at_size(drawn, {"M": 8, "N": 2}) == "At the hidden size"
    assert at_size(drawn, {"M": 16, "N": 2}) == "At M = 16, N = 2"


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ("M == 0", r"launch of kernel: grid \(0, 1, 1\) must be from 1"),
        (PUBLIC, r"At the hidden size: the grid of a launch is empty, or [^0-9]*$"),
        ("K != 320", r"At M = 128, N = 256, K = 320: .*grid \(0, 1, 1\) must be from 1"),
    ],
    ids=["the size that the prompt names first", "the hidden size", "the smallest size"],
)
def test_a_launch_that_is_empty_at_one_size_names_that_size(
    evaluator: Evaluator, gemm: Task, grid: str, says: str
) -> None:
    verdict = evaluator.evaluate(launching(grid), gemm)
    assert (verdict.status, verdict.code) == (Status.LAUNCH_ERROR, "launch.grid")
    assert re.match(says, verdict.message), verdict.message


def test_what_host_code_prints_is_quoted_at_public_sizes_alone(evaluator: Evaluator, gemm: Task) -> None:
    says = 'fprintf(stderr, "it is %d by %d", M, N); abort();'
    for where, told in (("K == 320", True), (f"!{PUBLIC}", False)):
        run = f"{{ if ({where}) {{ {says} }} kernel<<<1, 32, 0, stream>>>(C); }}\n"
        text = f"{PRINTS}{HEAD}{EMPTY_KERNEL}{SIGNATURE} {run}"
        verdict = evaluator.evaluate(text, gemm)
        assert verdict.code == "plan.host_abort"
        assert ('"it is 128 by 256"' in verdict.message) == told, verdict.message
        if not told:
            assert re.match("At the hidden size: host code aborted[^0-9]*$", verdict.message), verdict.message
            assert not re.search("it is [0-9]", verdict.model_dump_json())
