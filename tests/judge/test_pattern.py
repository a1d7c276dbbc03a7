"""Where wrong elements lie, in words: each picture with one that does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgym.judge.pattern import _fragments


def mask(rows: int = 256, columns: int = 512) -> NDArray[np.bool_]:
    return np.zeros((rows, columns), bool)


def test_elements_that_recur_are_told_by_row_and_column() -> None:
    wrong = mask()
    row, column = np.ogrid[:256, :512]
    wrong[(row % 16 >= 8) & (column % 2 == 0)] = True
    wrong[8, 0] = False  # right by chance
    assert _fragments(wrong) == (
        "regular: rows 8 … 15 of every 16, column 0 of every 2, as where an index of a fragment is wrong"
    )
    wrong = mask()
    wrong[(row % 8 == 3) & np.isin(column % 8, (1, 4))] = True
    assert (_fragments(wrong) or "").startswith("regular: row 3 of every 8, columns 1, 4 of every 8")
    wrong = mask(70, 130)
    wrong[:, ::4] = True
    assert (_fragments(wrong) or "").startswith("regular: column 0 of every 4, as")
    wrong = mask()
    wrong[(row % 64 < 3) & (column >= 0)] = True
    assert (_fragments(wrong) or "").startswith("regular: 3 rows of every 64,")


@pytest.mark.parametrize("share", [0.02, 0.25, 0.5])
def test_elements_that_lie_anywhere_do_not_recur(share: float) -> None:
    assert _fragments(np.random.default_rng(0).random((256, 512)) < share) is None


def test_no_grid_is_made_of_all_of_a_few_or_of_a_diagonal() -> None:
    assert _fragments(~mask()) is None
    assert _fragments(mask()) is None
    assert _fragments(~mask(32, 512)) is None, "smaller than a tile"
    row, column = np.ogrid[:256, :512]
    assert _fragments((row % 8) == (column % 8)) is None, "rows and columns do not explain it"
