from __future__ import annotations

import pytest

from ptxgym.fixit.mutate import OPERATORS, mutants, sampled
from tests.fixit.scripted import first_line, kernel


@pytest.mark.parametrize("arch", ["h100", "b200"])
def test_each_mutant_differs_in_one_line_behind_the_templates(arch: str) -> None:
    text, first = kernel(arch), first_line(arch)
    lines, found = text.split("\n"), list(mutants(text, first))
    assert len(found) > 60
    assert len({mutant.key for mutant in found}) == len(found)
    for mutant in found:
        changed = [at for at, line in enumerate(mutant.text.split("\n"), 1) if line != lines[at - 1]]
        assert changed == [mutant.line]
        assert mutant.line >= first


def test_every_operator_but_that_of_loops_over_scalars_has_a_place() -> None:
    used = {mutant.operator for arch in ("h100", "b200") for mutant in mutants(kernel(arch), first_line(arch))}
    assert {operator.name for operator in OPERATORS} - used == {"sum.forget"}
    assert {mutant.operator for mutant in mutants("  sum += a * b;")} >= {"sum.forget"}


def test_comments_and_directives_stay() -> None:
    assert list(mutants("// mbarrier_wait(&full, parity);\n#pragma unroll\n")) == []


def test_a_sample_goes_through_the_operators_in_turn_and_follows_from_the_seed() -> None:
    text, first = kernel("h100"), first_line("h100")
    some = sampled(text, 20, seed=4, first_line=first)
    assert len({mutant.operator for mutant in some}) == 20
    assert sampled(text, 20, seed=4, first_line=first) == some
    assert sampled(text, 20, seed=5, first_line=first) != some
    assert len(sampled(text, 10_000, seed=4, first_line=first)) == len(list(mutants(text, first)))
