"""Wrong numbers of a wgmma kernel, by mistakes that no rule forbids: the verdict names what can be why."""

from __future__ import annotations

import pytest

from ptxgym.evaluator import Evaluator
from ptxgym.feedback import render
from ptxgym.verdict import Severity, Status
from tests.conftest import CHECKOUT

KERNEL = (CHECKOUT / "tasks" / "gemm" / "solutions" / "h100" / "wgmma.cu").read_text()
STEP = "descriptor(a + k), descriptor(b + k)"
MISTAKES = {
    "step along K": (STEP, "descriptor(a + k / 2), descriptor(b + k / 2)", "descriptor.unread"),
    "swapped coordinates": ('"r"(k), "r"(row)', '"r"(row), "r"(k)', "tma.box_outside"),
    "scale-d": ("slice > 0 || k > 0", "1", "wgmma.uninitialised"),
    "stride offset": ("kStride = 1024 / 16", "kStride = 512 / 16", "descriptor.overlap"),
    "swizzle": ("kSwizzle128 = 1;", "kSwizzle128 = 2;", "descriptor.swizzle_mismatch"),
}


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(random_schedules=0)


@pytest.mark.parametrize(("right", "wrong", "code"), MISTAKES.values(), ids=MISTAKES)
def test_the_likely_cause_of_wrong_numbers_is_named(evaluator: Evaluator, right: str, wrong: str, code: str) -> None:
    assert right in KERNEL
    text = KERNEL.replace(right, wrong)
    verdict = evaluator.evaluate(text, "gemm")
    assert verdict.status is Status.WRONG_OUTPUT
    named = next(finding for finding in verdict.findings if finding.code == code)
    assert verdict.message.endswith(f"cause: {named.message}")
    assert f"{named.severity} {code}" in render(verdict, text)


def test_the_right_kernel_gets_no_such_note(evaluator: Evaluator) -> None:
    verdict = evaluator.evaluate(KERNEL, "gemm")
    assert verdict.status is Status.OK
    assert not [finding for finding in verdict.findings if finding.explains_numbers]
    assert not [finding for finding in verdict.findings if finding.severity is not Severity.NOTE]


def test_sums_that_nothing_has_zeroed_score_alike_on_both_generations(evaluator: Evaluator) -> None:
    texts = {"h100": KERNEL, "b200": (CHECKOUT / "tasks" / "gemm" / "solutions" / "b200" / "oracle.cu").read_text()}
    found = {}
    for arch, text in texts.items():
        assert text.count("slice > 0 || k > 0") == 1
        verdict = evaluator.evaluate(text.replace("slice > 0 || k > 0", "true"), "gemm", arch)
        found[arch] = (verdict.status, verdict.score, verdict.outputs[0].relative_error)
        assert {finding.severity for finding in verdict.findings if finding.explains_numbers} == {Severity.WARNING}
    assert found["h100"] == found["b200"] == (Status.WRONG_OUTPUT, 0.05, float("inf"))
