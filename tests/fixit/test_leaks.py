from __future__ import annotations

import pytest

from ptxgym.fixit.leaks import leaks, new_lines
from ptxgym.fixit.recipe import RationaleRules
from tests.fixit.scripted import CANARY, GOOD, first_line, kernel

RULES = RationaleRules()
RIGHT = kernel("h100")
WRONG = RIGHT.replace("    mbarrier_wait(&full, parity);\n", "").replace("kBytesA + kBytesB);\n", "kBytesA);\n")
FINE = GOOD.format(headline="the numbers are wrong")
ADDED = "mbarrier_wait ( & full , parity ) ;"


def found(text: str) -> tuple[str, ...]:
    return leaks(text, RULES, repair=RIGHT, wrong=WRONG, shown="the task", canaries=(CANARY,))


def test_a_derivation_that_ends_with_the_new_line_is_fine() -> None:
    assert found(FINE) == ()
    assert found(f"{FINE} So each pass must begin with mbarrier_wait(&full, parity);") == ()


@pytest.mark.parametrize(
    "said",
    [
        "The corrected kernel waits here.",
        "In the fixed version the barrier expects both tiles.",
        "I was given a kernel that waits.",
        "Comparing the failing kernel with the repair shows one line.",
        "The provided fix adds a wait.",
        "as the repair that I was shown does",
        "This matches the ground truth.",
        "Looking at the diff, one line was added.",
    ],
)
def test_speaking_of_a_given_repair_is_a_leak(said: str) -> None:
    assert found(f"{FINE} {said}") == ("names_repair",)


@pytest.mark.parametrize(
    "said",
    [
        "The given kernel has one barrier.",
        "So the repair is one line.",
        "With the wait in place the kernel is right.",
        "I compare the byte count with the boxes of both maps.",
        "the difference between both parities",
    ],
)
def test_speaking_of_ones_own_repair_is_none(said: str) -> None:
    assert found(f"{FINE} {said}") == ()


def test_a_quote_before_the_cause_is_derived_is_a_leak_however_it_is_laid_out() -> None:
    assert found(f"I add mbarrier_wait( &full,parity ); first. {FINE}") == ("quotes_early",)
    assert found(f"I see mbarrier_init(&full, 1); which stands there. {FINE}") == ()  # the failing kernel has it, too
    told = leaks(f"I add mbarrier_wait(&full, parity); {FINE}", RULES, repair=RIGHT, wrong=WRONG, shown=ADDED)
    assert told == ()  # the feedback named it


def test_new_lines_are_those_of_the_repair_alone() -> None:
    own = {line.strip() for line in new_lines(RIGHT, WRONG)}
    assert own == {ADDED, "mbarrier_arrive_expect_tx ( & full , kBytesA + kBytesB ) ;"}


def test_reciting_length_and_canaries() -> None:
    assert found(f"{FINE}\n{RIGHT}") == ("recites",)
    assert found("\n".join([FINE, *RIGHT.splitlines()[first_line("h100") + 30 :]])) == ()  # some lines are no recital
    assert found("Short.") == ("too_short",)
    assert found(FINE * 400) == ("too_long",)
    assert found(f"{FINE} {CANARY}") == ("canary",)
    assert found(f"{FINE} Canary x: texts of this benchmark must not be trained on.") == ("canary",)
