"""wgmma on u8 and s8 against numpy's 64-bit integers: both types of both operands, wrapping, .satfinite."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.device.emulator.tensor import reference
from tests.device.emulator.tensor.harness import Kernels, succeeded
from tests.device.emulator.tensor.reference import accumulator_places
from tests.device.emulator.tensor.test_wgmma_elements import image, launched, text
from tests.gpu.cases import IMAGE, Case
from tests.gpu.cases.elements import integer_cases

Matrix = NDArray[np.int64]
RANGE = {"u8": (0, 256), "s8": (-128, 128)}
LEAST, GREATEST = -(2**31), 2**31 - 1


def multiplied(
    kinds: tuple[str, str], a: Matrix, b: Matrix, c: Matrix | None = None, *, registers: bool = False, words: str = ""
) -> Matrix:
    """D of one wgmma, [64, n]: zero, or `c`, plus A Bᵀ."""
    n = b.shape[0]
    rows, columns = accumulator_places(n)
    data = (np.full((128, n // 2), 77) if c is None else c[rows, columns]).astype(np.int32)
    form = f"m64n{n}k32{words}.s32.{kinds[0]}.{kinds[1]}"
    body = text(form, n // 2, registers=registers, signs="", scale=int(c is not None))
    matrix = np.zeros((64, n), np.int64)
    matrix[rows, columns] = launched(body, image(a.astype(np.uint8), b.astype(np.uint8)), data)
    return matrix


def drawn(kind: str, rows: int, seed: int) -> Matrix:
    values = np.random.default_rng(seed).integers(*RANGE[kind], (rows, 32))
    values[0], values[1] = RANGE[kind][0], RANGE[kind][1] - 1  # whole rows of both ends
    return values


PAIRS = [(x, y) for x in RANGE for y in RANGE]


@pytest.mark.parametrize("registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_products_are_exact(kinds: tuple[str, str], registers: bool) -> None:
    a, b = drawn(kinds[0], 64, 1), drawn(kinds[1], 24, 2)
    c = np.random.default_rng(3).integers(-(2**30), 2**30, (64, 24))
    np.testing.assert_array_equal(multiplied(kinds, a, b, registers=registers), a @ b.T)
    np.testing.assert_array_equal(multiplied(kinds, a, b, c, registers=registers), c + a @ b.T)


@pytest.mark.parametrize("n", [8, 48, 128])
def test_every_column_has_its_place(n: int) -> None:
    a, b = drawn("s8", 64, 4), drawn("u8", n, 5)
    np.testing.assert_array_equal(multiplied(("s8", "u8"), a, b), a @ b.T)


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_overflow_wraps_or_is_limited(kinds: tuple[str, str]) -> None:
    a, b = drawn(kinds[0], 64, 6), drawn(kinds[1], 8, 7)
    c = np.where(np.arange(64 * 8).reshape(64, 8) % 2, GREATEST - 1000, LEAST + 1000)
    exact = c + a @ b.T
    assert (exact > GREATEST).any() and (kinds == ("u8", "u8") or (exact < LEAST).any())
    np.testing.assert_array_equal(multiplied(kinds, a, b, c), exact.astype(np.int32))
    limited = multiplied(kinds, a, b, c, words=".satfinite")
    np.testing.assert_array_equal(limited, np.clip(exact, LEAST, GREATEST))


def conformance_result(case: Case) -> NDArray[np.int32]:
    """D of a case of `tests/gpu/cases/elements.py`, in fragments [128, registers], from its input alone."""
    form = case.name.split("/")[2].split(".")
    n, kinds = int(form[0][4:].partition("k")[0]), form[-2:]
    memory = np.frombuffer(case.input, np.uint8)
    before = memory[IMAGE:][: case.out_bytes].view(np.int32).reshape(128, n // 2)
    if "registers" in case.name:
        a = np.empty((64, 32), np.uint8)  # PTX ISA 9.7.15.5.1.1: four elements of 8 bits in a register
        places = reference.thread_values(((4, 8, 4), (256, 1, 16)), ((4, 2, 2), (64, 8, 1024)), 64)
        a[places] = memory[IMAGE + case.out_bytes :].reshape(128, 16)
    else:  # K-major, the layout is that of 16 elements of 16 bits
        a = reference.operand(memory, case.wide[0], 64, mn_major=False).view(np.uint8)
    b = reference.operand(memory, case.wide[1], n, mn_major=False).view(np.uint8)
    left, right = (
        x.view(np.int8 if kind == "s8" else np.uint8).astype(np.int64) for x, kind in zip((a, b), kinds, strict=True)
    )
    exact = (left @ right.T)[accumulator_places(n)] + (0 if "scale_d" in case.name else before.astype(np.int64))
    return (np.clip(exact, LEAST, GREATEST) if "satfinite" in form else exact).astype(np.int32)


@pytest.mark.parametrize("case", list(integer_cases()), ids=lambda c: c.name)
def test_the_cases_for_hardware(conformance: Kernels, case: Case) -> None:
    run = conformance.run(case)
    assert succeeded(run) and not run.codes()
    np.testing.assert_array_equal(run.output.view(np.int32).reshape(128, -1), conformance_result(case))


def test_the_cases_for_hardware_overflow_at_both_ends() -> None:
    """Else they would not tell .satfinite from its absence."""
    cases = {case.name: case for case in integer_cases()}
    for kinds in PAIRS:
        name = f"wgmma/integers/m64n8k32.s32.{'.'.join(kinds)}"
        wrapped = conformance_result(cases[name])
        limited = conformance_result(cases[name.replace(".s32", ".satfinite.s32")])
        assert (wrapped != limited).any()
        assert (limited == GREATEST).any() and (kinds == ("u8", "u8") or (limited == LEAST).any())
