"""Rewards of a group: rollouts of one task that a trainer compares with each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ptxgym.errors import UsageError

ROUNDING = 1e-9
"""Sums of increments differ by the order in which they were paid."""

_Key = tuple[tuple[str, str], tuple[str, ...]]
"""Group and texts."""


class MixedConditionsError(UsageError):
    """Raised when rollouts that are to be compared were judged under different conditions."""


@dataclass(frozen=True)
class Member:
    """A rollout, as far as its group is concerned."""

    task: str
    """Environment and variant; rollouts of one task are judged under the same conditions."""
    texts: tuple[str, ...]
    """What was judged, turn by turn."""
    reward: float | None
    """None where the machine failed."""
    circumstances: frozenset[tuple[str, str]]
    """Names and values of what the verdicts were judged under: conditions, device, tier."""
    policies: tuple[str, ...] = ()
    """Which version of the policy wrote each text, as the trainer said; it changes no reward."""
    noise: tuple[float, float] = (0.0, 0.0)
    """How much less and how much more than the reward it may be worth, by the intervals of its timings."""
    rules: str = ""
    """Stands for what else decides how texts are paid, such as the preset and the kernel to start from; rollouts of one
    task and equal rules are a group."""

    @property
    def group(self) -> tuple[str, str]:
        """What it is compared within."""
        return self.task, self.rules


def group_rewards(members: Sequence[Member]) -> list[float | None]:
    """Return the rewards of rollouts, by which a trainer may compare those of one group.

    Equal texts get equal rewards: where a GPU measured them apart, the lowest that was paid. So do rollouts whose
    intervals overlap: advantages are often divided by the deviation of their group, which would make the
    edge of a grid as large as a rung. A rollout that the machine failed at has None, and changes nothing about the
    others.

    Args:
        members: Any number of groups, in any order.

    Raises:
        MixedConditionsError: if members of one task were judged under different conditions, devices or tiers.
    """
    known = [member for member in members if member.reward is not None]
    check_conditions((member.task, member.circumstances) for member in known)
    paid: dict[_Key, float] = {}
    for member in known:
        key = (member.group, member.texts)
        paid[key] = min(_paid(member), paid.get(key, _paid(member)))
    levels: dict[tuple[str, str], dict[float, float]] = {}
    for group in {member.group for member in known}:
        levels[group] = _levels((paid[group, each.texts], each.noise) for each in known if each.group == group)
    return [
        None if member.reward is None else levels[member.group][paid[member.group, member.texts]] for member in members
    ]


def _paid(member: Member) -> float:
    assert member.reward is not None  # asked of those that have one
    return member.reward


def _levels(rewards: Iterable[tuple[float, tuple[float, float]]]) -> dict[float, float]:
    """Return what each reward of a group counts as: the lowest that it cannot be told from."""
    noises: dict[float, tuple[float, float]] = {}
    for reward, (below, above) in rewards:
        known = noises.get(reward, (0.0, 0.0))
        noises[reward] = max(below, known[0]), max(above, known[1])
    level, reach, found = 0.0, -math.inf, {}
    for reward, (below, above) in sorted(noises.items()):
        if reward - below > reach:
            level, reach = reward, reward + above + ROUNDING
        found[reward] = level
    return found


def group_advantages(rewards: Iterable[float | None]) -> list[float]:
    """Return each reward minus the mean of its group, for trainers that leave this to the user; 0 where it is None.

    A missing reward is in no mean: its siblings' advantages are those of the group without it.
    """
    given = list(rewards)
    known = [reward for reward in given if reward is not None]
    mean = sum(known) / len(known) if known else 0.0
    return [0.0 if reward is None else reward - mean for reward in given]


def check_conditions(judged: Iterable[tuple[str, frozenset[tuple[str, str]]]]) -> None:
    """Accept rollouts that may be compared.

    Args:
        judged: Of each rollout its task and circumstances, as in `Member`.

    Raises:
        MixedConditionsError: if those of one task were judged under different conditions, devices or tiers.
    """
    seen: dict[tuple[str, str], str] = {}
    for task, circumstances in judged:
        for name, value in sorted(circumstances):
            first = seen.setdefault((task, name), value)
            if first != value:
                raise MixedConditionsError(
                    f"rollouts of {task} were judged under different {name}: {first} and {value}. Their rewards cannot "
                    "be compared: give all processes the same PTXGYM_SECRET, and one epoch, tier and kind of GPU"
                )
