"""Which task to play next: those that are neither too easy nor too hard for the model as it is now.

A trainer draws items and tells how they went. Items whose rate of success lies in a band are drawn most; the others
now and then, since the model changes. Harder items are opened when those that are open are no longer all failures.

Draws and rates are whole numbers made of a seed and of what was told, so that a state that was saved goes on the same
on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from ptxgym import content
from ptxgym.envs import load_env
from ptxgym.errors import ContentError, UsageError
from ptxgym.fixit.mutate import check_teaching, sampled
from ptxgym.fixit.sampling import drawn
from ptxgym.fixit.solutions import Solutions
from ptxgym.store.lines import to_json, write_whole
from ptxgym.task import load_task
from ptxgym.variants import variants_of
from ptxgym.verdict import Value

IN_BAND, TOO_EASY, TOO_HARD = 100, 5, 10
"""How often items are drawn, by where their rate of success lies."""
WINDOW = 32
"""Outcomes of an item that count; older ones were another model's."""
EVIDENCE = 4
"""Outcomes of a difficulty before the next one may open."""


class Item(Value):
    """Something to play."""

    key: str
    """Unique, and the same in every run."""
    env: str
    """Plain id."""
    options: dict[str, str]
    """For `reset`: `variant`, and `init` for a kernel to repair."""
    difficulty: int


class State(Value):
    """All that a curriculum remembers."""

    seed: int
    low: float
    high: float
    draws: int = 0
    outcomes: dict[str, str] = Field(default_factory=dict)
    """By key: the last outcomes, `1` or `0`, oldest first."""


class Curriculum:
    """Draws items by their rates of success. For use by one thread."""

    def __init__(self, items: Iterable[Item], *, seed: int = 0, band: tuple[float, float] = (0.2, 0.8)) -> None:
        """Begin.

        Args:
            items: What may be played, in any order.
            seed: Of the draws.
            band: Least and largest rate of success that is worth while.

        Raises:
            UsageError: if there are no items, two have the same key, or the band is none.
        """
        low, high = band
        if not 0 <= low < high <= 1:
            raise UsageError(f"band must be two rates 0 <= low < high <= 1, not {low}, {high}")
        ordered = sorted(items, key=lambda item: (item.difficulty, item.key))
        self._items = {item.key: item for item in ordered}
        if not ordered:
            raise UsageError("a curriculum needs items, such as those of `variant_items`")
        if len(self._items) < len(ordered):
            keys = [item.key for item in ordered]
            raise UsageError(
                f"items are there twice: {', '.join(sorted({key for key in keys if keys.count(key) > 1}))}"
            )
        self._state = State(seed=seed, low=low, high=high)

    @classmethod
    def load(cls, path: Path, items: Sequence[Item]) -> Curriculum:
        """Go on from a state that was saved.

        Args:
            path: Of the file.
            items: As they were; new ones are fine, ones that are gone are forgotten.

        Raises:
            UsageError: if there are no items.
            ContentError: if the file is missing or no state.
        """
        try:
            state = State.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise ContentError(f"{path} is no state of a curriculum: {error}") from error
        curriculum = cls(items, seed=state.seed, band=(state.low, state.high))
        kept = {key: told for key, told in state.outcomes.items() if key in curriculum._items}
        curriculum._state = state.model_copy(update={"outcomes": kept})
        return curriculum

    def save(self, path: Path) -> None:
        """Write the state as JSON: the file is there whole or not at all.

        Raises:
            InfrastructureError: if it cannot be written.
        """
        write_whole(path, to_json(self._state) + "\n")

    @property
    def state(self) -> State:
        """What would be saved."""
        return self._state

    def draw(self) -> Item:
        """Return the next item to play."""
        weights = self.weights()
        at = drawn(self._state.seed, "draw", self._state.draws) % sum(weights.values())
        self._state = self._state.model_copy(update={"draws": self._state.draws + 1})
        for key, weight in weights.items():
            if at < weight:
                return self._items[key]
            at -= weight
        raise AssertionError("the weights sum to more than they hold")

    def tell(self, key: str, success: bool | None) -> None:
        """Say how an item went.

        Args:
            key: Of the item.
            success: None where the machine failed, which counts for nothing.

        Raises:
            UsageError: if there is no such item.
        """
        self._known(key)
        if success is None:
            return
        told = (self._state.outcomes.get(key, "") + "01"[success])[-WINDOW:]
        self._state = self._state.model_copy(update={"outcomes": {**self._state.outcomes, key: told}})

    def rate(self, key: str) -> Fraction:
        """Return the rate of success of an item, with a success and a failure added, so that none is ever sure.

        Raises:
            UsageError: if there is no such item.
        """
        self._known(key)
        told = self._state.outcomes.get(key, "")
        return Fraction(told.count("1") + 1, len(told) + 2)

    def weights(self) -> Mapping[str, int]:
        """Return how often each open item is drawn, in the order of difficulty."""
        limit = self._opened()
        return {key: self._weight(key) for key, item in self._items.items() if item.difficulty <= limit}

    def _weight(self, key: str) -> int:
        if not self._state.outcomes.get(key):
            return IN_BAND
        rate = self.rate(key)
        return (
            TOO_HARD if rate < Fraction(self._state.low) else TOO_EASY if rate > Fraction(self._state.high) else IN_BAND
        )

    def _opened(self) -> int:
        """Return the largest difficulty that is open: the first at which too little succeeds yet."""
        levels = sorted({item.difficulty for item in self._items.values()})
        for level in levels:
            told = "".join(
                self._state.outcomes.get(key, "") for key, item in self._items.items() if item.difficulty == level
            )
            if len(told) < EVIDENCE or Fraction(told.count("1"), len(told)) < Fraction(self._state.low):
                return level
        return levels[-1]

    def _known(self, key: str) -> None:
        if key not in self._items:
            raise UsageError(content.unknown("item", key, self._items))


def variant_items(*envs: str) -> tuple[Item, ...]:
    """Return an item for each variant to train on of environments; held-out ones are never among them.

    Raises:
        UnknownNameError: if an environment does not exist.
    """
    return tuple(
        Item(
            key=f"{config.name}/{variant.name}",
            env=config.name,
            options={"variant": variant.name},
            difficulty=variant.difficulty,
        )
        for config in map(load_env, envs)
        for variant in variants_of(load_task(config.task))
        if variant.split == "train"
    )


def repair_items(
    env: str, variant: str, kernel: str, count: int, *, seed: int = 0, first_line: int = 1, solutions: Any = None
) -> tuple[Item, ...]:
    """Return repair tasks: mutants of a teaching kernel, to be mended.

    Some mutants may be right all the same; their `init` has its score paid, and the curriculum finds them too easy.

    Args:
        env: Environment.
        variant: Of its task, to train on.
        kernel: A right kernel for it.
        count: How many mutants.
        seed: Of their choice.
        first_line: Lines before it, such as template functions, stay as they are.
        solutions: `ptxgym.fixit.solutions.Solutions`, where they are at hand.

    Raises:
        UsageError: if the variant is held out, or the kernel is like a proven solution of an evaluated task.
    """
    config = load_env(env)
    check_teaching(kernel, config.task, variant, config.arch, solutions or Solutions())
    difficulty = next(each.difficulty for each in variants_of(load_task(config.task)) if each.name == variant)
    return tuple(
        Item(
            key=f"{config.name}/{variant}/{mutant.key}",
            env=config.name,
            options={"variant": variant, "init": mutant.text},
            difficulty=difficulty - 1,
        )
        for mutant in sampled(kernel, count, seed, first_line)
    )
