from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from ptxgym.curriculum import EVIDENCE, IN_BAND, TOO_EASY, TOO_HARD, Curriculum, Item, repair_items, variant_items
from ptxgym.errors import ContentError, UsageError
from ptxgym.fixit.solutions import Solutions
from ptxgym.task import load_task, oracle
from ptxgym.variants import variants_of
from tests.fixit.scripted import first_line, kernel


def items(levels: int = 3, each: int = 4) -> list[Item]:
    return [
        Item(key=f"{level}/{number}", env="PTX-Gemm-H100", options={"variant": f"v{number}"}, difficulty=level)
        for level in range(levels)
        for number in range(each)
    ]


def played(curriculum: Curriculum, ability: float, draws: int) -> list[str]:
    """A model that succeeds the more often the lower the difficulty; by a generator of its own."""
    luck, drawn = random.Random(1), []
    for _ in range(draws):
        item = curriculum.draw()
        drawn.append(item.key)
        curriculum.tell(item.key, luck.random() < min(0.97, max(0.02, ability - 0.4 * item.difficulty)))
    return drawn


def test_the_same_seed_and_outcomes_give_the_same_draws_whatever_the_order_of_items() -> None:
    shuffled = items()
    random.Random(3).shuffle(shuffled)
    first = played(Curriculum(items(), seed=7), 0.9, 200)
    assert played(Curriculum(shuffled, seed=7), 0.9, 200) == first
    assert played(Curriculum(items(), seed=8), 0.9, 200) != first


def test_draws_of_a_seed_never_change() -> None:
    """Expected: SHA-256 of seed, word and number, its first eight bytes modulo the weights, computed apart."""
    curriculum = Curriculum(items(1, 4), seed=7)
    assert [curriculum.draw().key for _ in range(8)] == ["0/1", "0/2", "0/1", "0/0", "0/3", "0/3", "0/3", "0/0"]


def test_harder_items_open_when_easier_ones_succeed() -> None:
    curriculum = Curriculum(items())
    assert {curriculum.draw().difficulty for _ in range(50)} == {0}
    for number in range(EVIDENCE):
        curriculum.tell(f"0/{number}", False)
    assert {curriculum.draw().difficulty for _ in range(50)} == {0}
    for number in range(EVIDENCE):
        curriculum.tell(f"0/{number}", True)
    assert {curriculum.draw().difficulty for _ in range(50)} == {0, 1}


def test_items_in_the_band_are_drawn_most_and_no_open_one_never() -> None:
    curriculum = Curriculum(items(1, 4), band=(0.2, 0.8))
    for key, outcomes in {"0/0": [True] * 10, "0/1": [False] * 10, "0/2": [True, False] * 5}.items():
        for outcome in outcomes:
            curriculum.tell(key, outcome)
    assert dict(curriculum.weights()) == {"0/0": TOO_EASY, "0/1": TOO_HARD, "0/2": IN_BAND, "0/3": IN_BAND}
    counts = Counter(curriculum.draw().key for _ in range(3000))
    total = TOO_EASY + TOO_HARD + 2 * IN_BAND
    for key, weight in curriculum.weights().items():
        assert counts[key] == pytest.approx(3000 * weight / total, rel=0.35)


def test_rates_stay_in_the_band_as_the_model_learns() -> None:
    """Over a model that gets better, more of what is drawn is in the band than if items were drawn alike."""
    luck, alike = random.Random(5), random.Random(6)

    def inside(guided: bool) -> float:
        curriculum, every, hits = Curriculum(items(6)), items(6), 0
        for step in range(1500):
            item = curriculum.draw() if guided else alike.choice(every)
            chance = min(0.98, max(0.02, 0.7 + step / 700 - 0.5 * item.difficulty))
            hits += 0.2 <= chance <= 0.8
            curriculum.tell(item.key, luck.random() < chance)
        return hits / 1500

    assert inside(guided=True) > 1.5 * inside(guided=False)


def test_old_outcomes_are_forgotten_and_failures_of_the_machine_count_for_nothing() -> None:
    curriculum = Curriculum(items())
    for _ in range(100):
        curriculum.tell("0/0", False)
    for _ in range(32):
        curriculum.tell("0/0", True)
    assert curriculum.rate("0/0") == Fraction(32 + 1, 32 + 2)
    before = curriculum.state
    curriculum.tell("0/0", None)
    assert curriculum.state == before


def test_a_saved_state_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "curriculum.json"
    whole, first = Curriculum(items(), seed=2), Curriculum(items(), seed=2)
    expected = played(whole, 0.8, 60)
    assert played(first, 0.8, 60) == expected
    first.save(path)
    again = Curriculum.load(path, items())
    assert again.state == whole.state
    assert played(again, 0.8, 100) == played(whole, 0.8, 100)
    fewer = Curriculum.load(path, items()[1:])
    assert "0/0" not in fewer.state.outcomes
    path.write_text("{}")
    with pytest.raises(ContentError, match="no state"):
        Curriculum.load(path, items())


def test_wrong_use_says_what_is_wrong() -> None:
    with pytest.raises(UsageError, match="band"):
        Curriculum(items(), band=(0.8, 0.2))
    with pytest.raises(UsageError, match="needs items"):
        Curriculum([])
    with pytest.raises(UsageError, match="twice"):
        Curriculum([*items(), *items()])
    with pytest.raises(UsageError, match="unknown item '0/9'"):
        Curriculum(items()).tell("0/9", True)


def test_variants_to_train_on_are_items_and_held_out_ones_are_not() -> None:
    found = variant_items("PTX-Gemm-H100", "PTX-AttnFwd-B200")
    for env, task in (("PTX-Gemm-H100", "gemm"), ("PTX-AttnFwd-B200", "attn_fwd")):
        ours = {item.options["variant"] for item in found if item.env == env}
        assert ours == {each.name for each in variants_of(load_task(task)) if each.split == "train"}
        assert "base" not in ours


def test_repair_tasks_are_made_of_teaching_kernels_only() -> None:
    solutions, text = Solutions(), kernel("h100")
    found = repair_items("PTX-Gemm-H100", "bias", text, 12, seed=1, first_line=first_line("h100"), solutions=solutions)
    assert len({item.options["init"] for item in found}) == 12
    assert all(item.options["init"] != text and item.options["variant"] == "bias" for item in found)
    again = repair_items("PTX-Gemm-H100", "bias", text, 12, seed=1, first_line=first_line("h100"), solutions=solutions)
    assert again == found
    with pytest.raises(UsageError, match="held out"):
        repair_items("PTX-Gemm-H100", "base", text, 3, solutions=solutions)
    with pytest.raises(UsageError, match="held out"):
        repair_items("PTX-Gemm-H100", "nt-fp32", text, 3, solutions=solutions)
    best = load_task("gemm").source(oracle(load_task("gemm"), "h100"))
    with pytest.raises(UsageError, match="shares 100%"):
        repair_items("PTX-Gemm-H100", "bias", best, 3, solutions=solutions)
