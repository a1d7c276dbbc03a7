"""What is said of failures at hidden sizes: nothing that host code could choose."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ptxgym
from ptxgym.build import Build
from ptxgym.plan import LaunchPlan, device_profile, record
from ptxgym.plan.untold import GENERAL, untold
from ptxgym.verdict import Failure, Stage, Status
from tests.plan.conftest import ARGUMENTS, LIMITS, SUBMISSIONS, compiled, failed, planned

# by mode of hosts.cu: what the message tells of a public size
TOLD = {
    5: "my own fault",
    14: "/tmp/ptxgym-test-file",
    33: "15888 bytes",
    35: "5368709120 bytes",
    44: "an assertion of mine",
    46: "no such kernel",
    52: "MaxDynamicSharedMemorySize = 300000",
}


@pytest.fixture(scope="module")
def hosts_build() -> Build:
    return compiled((SUBMISSIONS / "hosts.cu").read_text())


@pytest.fixture(scope="module")
def later() -> Build:
    return compiled((SUBMISSIONS / "later.cu").read_text())


@pytest.mark.parametrize("mode", sorted(TOLD))
def test_a_hidden_size_is_told_by_no_value_and_no_text(hosts_build: Build, mode: int) -> None:
    def message(hidden: bool) -> tuple[str, str]:
        axes = {"mode": mode, "n": 1}
        outcome = record(hosts_build, ARGUMENTS, axes, device_profile("h100"), limits=LIMITS, hidden=hidden)
        return failed(outcome).code, failed(outcome).message

    code, told = message(hidden=False)
    assert TOLD[mode] in told
    assert message(hidden=True) == (code, untold(_failure(code)).message)


def test_a_later_call_that_differs_at_a_hidden_size_gets_the_advice_alone(later: Build) -> None:
    profile, at = device_profile("h100"), {"mode": 4, "n": 16}
    other = planned(record(later, ARGUMENTS, at, profile, limits=LIMITS))
    assert isinstance(other, LaunchPlan)
    stale = failed(record(later, ARGUMENTS, {**at, "n": 24}, profile, other=other, limits=LIMITS, hidden=True))
    assert stale.code == "plan.later_call"
    assert stale.message == (
        "call 2 of `run` in one process (other buffers and sizes) does not do what a first call there does; compute it "
        "from the arguments in every call, or keep it by these arguments"
    )


def test_a_code_that_only_a_forged_record_has_is_not_told() -> None:
    forged = untold(_failure("plan.twohundredfiftysix"))
    assert (forged.code, forged.message) == ("plan.invalid", untold(_failure("plan.invalid")).message)


def test_every_failure_has_words_without_values() -> None:
    package = Path(ptxgym.__file__).parent
    files = [*(package / "native" / "recorder").glob("*.cpp"), *(package / "plan").glob("*.py")]
    text = "".join(file.read_text() for file in files if file.name != "untold.py")
    said = set(re.findall(r'"((?:plan|launch)\.[a-z_]+)"', text.replace('#include "launch.hpp"', "")))
    assert said - {"plan.later_call"} == set(GENERAL)
    assert not any(re.search("[0-9]", words) for words in GENERAL.values())


def _failure(code: str) -> Failure:
    return Failure(stage=Stage.PLAN, status=Status.PLAN_ERROR, code=code, message="M is 256")
