"""Where CTAs meet in a part of what one of them touched as a whole: none is missed, and none is made up.

One host thread: so the CTAs run in order, and are watched from the start.
"""

from __future__ import annotations

import pytest

from ptxgym.device.protocol import RunOptions
from ptxgym.verdict import Severity
from tests.device.emulator.hazards.harness import Kernels, lines_of
from tests.device.emulator.order.test_global import GRID, launch, races, worst

ALONE = RunOptions(threads=1)
PART = 256
"""Bytes of a CTA in pieces.cu."""
WIDTHS = (1, 2, 4, 16)
talks = pytest.mark.parametrize("talks", [0, 1], ids=["independent", "talking"])


@talks
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("fault", [0, 5])
def test_neighbours_that_do_not_meet_are_clean(pieces: Kernels, fault: int, width: int, talks: int) -> None:
    result = launch(pieces, f"pieces<{width},{fault},{talks}>", ALONE)
    assert [(f.code, f.message) for f in result.findings] == []


@talks
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("fault", [1, 2, 3, 4])
def test_a_part_of_a_line_is_met(pieces: Kernels, fault: int, width: int, talks: int) -> None:
    result = launch(pieces, f"pieces<{width},{fault},{talks}>", ALONE)
    (found,) = races(result)
    assert found.severity is Severity.ERROR
    assert lines_of(found) == pieces.marked("pieces", str(fault))
    first = PART - width if fault in (1, 3) else PART
    assert f" byte {first} of out" in found.message
    assert found.count == GRID - 1


@talks
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("fault", "later", "earlier"),
    [
        (1, "warp 0 of CTA 1", "warp 1 of CTA 0"),
        (2, "warp 0 of CTA 1", "warp 0 of CTA 0"),
        (6, "warp 1 of CTA 1", "warp 0 of CTA 0"),
    ],
)
def test_the_warps_that_meet_are_named(
    pieces: Kernels, fault: int, later: str, earlier: str, width: int, talks: int
) -> None:
    (found,) = races(launch(pieces, f"pieces<{width},{fault},{talks}>", ALONE))
    first = {1: PART - width, 2: PART, 6: 2 * PART - max(width, 4)}[fault]  # 6: the later one stores whole words
    assert found.message.startswith(f"{later} writes byte {first} of out, which {earlier} writes at line ")
    assert lines_of(found) == pieces.marked("pieces", str(fault))


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (1, "warp 1 of CTA 1 writes byte 384 of out, which warp 0 of CTA 0 writes"),
        (2, "warp 0 of CTA 1 writes byte 128 of out, which warp 1 of CTA 0 writes"),
    ],
)
def test_whole_lines_of_warps_that_share_an_instruction_are_told_apart(pieces: Kernels, fault: int, found: str) -> None:
    assert races(launch(pieces, "lines<0>", ALONE)) == []
    (race,) = races(launch(pieces, f"lines<{fault}>", ALONE))
    assert race.message.startswith(f"{found} at line ")
    assert race.severity is Severity.ERROR
    assert race.count == 1
    assert lines_of(race) == pieces.marked("lines", str(fault))


def test_rows_over_a_page(pieces: Kernels) -> None:
    size = 8192
    assert races(launch(pieces, "across<0>", ALONE, size=size)) == []
    (found,) = races(launch(pieces, "across<1>", ALONE, size=size))
    assert found.severity is Severity.ERROR
    assert lines_of(found) == pieces.marked("across", "1")
    assert f" byte {4 * (999 + 63)} of out" in found.message


@pytest.mark.parametrize("apart", [0, 1], ids=["a line", "words apart"])
def test_every_byte_decides_whether_the_same_is_stored(pieces: Kernels, apart: int) -> None:
    same, other = (launch(pieces, f"rows<{apart},{differs}>", ALONE) for differs in (0, 1))
    assert worst(same) is Severity.NOTE
    assert worst(other) is Severity.ERROR


def test_a_histogram_is_clean_unless_it_is_touched_plainly(pieces: Kernels) -> None:
    assert races(launch(pieces, "tally<0>", ALONE)) == []
    for fault, severity in ((1, Severity.WARNING), (2, Severity.ERROR)):
        result = launch(pieces, f"tally<{fault}>", ALONE)
        assert worst(result) is severity
        assert lines_of(races(result)[0]) == pieces.marked("tally", str(fault))


def test_the_half_of_a_word_is_remembered_though_another_cta_has_stored_its_other_half(pieces: Kernels) -> None:
    assert races(launch(pieces, "halves<0>", ALONE)) == []
    for fault in (1, 2):
        (found,) = races(launch(pieces, f"halves<{fault}>", ALONE))
        assert found.severity is Severity.ERROR
        assert lines_of(found) == pieces.marked("halves", str(fault))
        assert " byte 0 of out" in found.message
