"""Small edits of a right kernel that an engineer might have got wrong: repair tasks whose answer is known.

They are edits of the source, by patterns. Some leave the kernel right; whoever uses a mutant judges it first. Only
teaching kernels are mutated: `check_teaching` refuses a held-out task's solution, and whatever is like one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ptxgym.errors import UsageError
from ptxgym.fixit.sampling import shuffled
from ptxgym.fixit.solutions import Solutions
from ptxgym.task import load_task
from ptxgym.variants import variants_of

COPY = 0.6
"""A kernel that shares so much with a proven solution is a copy of it (`docs/fixit.md` has the measurement)."""


@dataclass(frozen=True)
class Mutant:
    """One wrong kernel."""

    operator: str
    line: int
    """Of the source, from 1."""
    text: str

    @property
    def key(self) -> str:
        """Unique among the mutants of a kernel."""
        return f"{self.operator}/{self.line}"


@dataclass(frozen=True)
class Operator:
    """A kind of edit."""

    name: str
    pattern: re.Pattern[str]
    replacement: str | Callable[[re.Match[str]], str]


def _operator(name: str, pattern: str, replacement: str | Callable[[re.Match[str]], str] = "") -> Operator:
    return Operator(name, re.compile(pattern), replacement)


_CALL = r"^[ ]*(?:if \([^;{]*\) )?"
OPERATORS = (
    _operator("drop.wait", _CALL + r"\w*_wait\w*(?:<[^;>]*>)?\([^;]*\);(?= *(?://.*)?$)"),
    _operator("drop.fence", _CALL + r"\w*fence\w*\([^;]*\);(?= *(?://.*)?$)"),
    _operator("drop.commit", _CALL + r"\w*commit\w*\([^;]*\);(?= *(?://.*)?$)"),
    _operator("drop.sync", _CALL + r"(?:__sync\w+|\w*_sync)\([^;]*\);(?= *(?://.*)?$)"),
    _operator("drop.arrive", _CALL + r"\w*_(?:arrive|expect)\w*\([^;]*\);(?= *(?://.*)?$)"),
    _operator("drop.copy", _CALL + r"tma_\w+\([^;]*\);(?= *(?://.*)?$)"),
    _operator("drop.init", _CALL + r"\w*_init\([^;]*\);(?= *(?://.*)?$)"),
    _operator("flip.parity", r"\bparity \^= 1", "parity ^= 0"),
    _operator("start.parity", r"\bparity = 0\b", "parity = 1"),
    _operator("expect.less", r"(?<=, )(\w+) \+ (\w+)(?=\);)", r"\1"),
    _operator("loop.late", r"(for \(int \w+ = )0(;)", r"\g<1>1\2"),
    _operator("loop.past", r"(for \(int \w+ = [^;]*; \w+ )<( )", r"\1<=\2"),
    _operator("accumulate.never", r"\b\w+ > 0 \|\| \w+ > 0\b", "false"),
    _operator("accumulate.always", r"\b\w+ > 0 \|\| \w+ > 0\b", "true"),
    _operator("offset.step", r"(?<=\+ )(\w+) / 8\b", r"\1 / 16"),
    _operator("descriptor.span", r"\b(descriptor_k_major)<128>", r"\1<64>"),
    _operator("sign", r"(\] )\+( __)", r"\1-\2"),
    _operator("swap.coordinates", r"(tma_\w+\([^;]*, )(\w+), (\w+)(\);)", r"\1\3, \2\4"),
    _operator("swap.indices", r"\bblockIdx\.([xy])\b", lambda match: f"blockIdx.{'xy'[match[1] == 'x']}"),
    _operator("index.stride", r"(static_cast<size_t>\(\w+\) \* )N\b", r"\1K"),
    _operator("launch.threads", r"(<<<[^,]+, )128(,)", r"\g<1>96\2"),
    _operator("launch.shared", r"(<<<[^,]+, \w+, \w+)( \+ \w+)", r"\1"),
    _operator("launch.grid", r"(dim3 grid\(\w+) / \w+", r"\1 / 256"),
    _operator("typo.semicolon", r"^( *\w[^;]*[\w)]);$", r"\1"),
    _operator("typo.name", r"\b(threadIdx)\.x\b", r"\1.w"),
    _operator("typo.type", r"^( *)const int\b", r"\1const itn"),
    _operator("box.rows", r"(bf16_map\([^;]*, )(\w+)(\);)", r"\1\2 / 2\3"),
    _operator("loop.plus", r"\+ (__bfloat162float|fmaf?)\(", r"* \1("),
    _operator("sum.forget", r"\bsum \+= ", "sum = "),
)


def mutants(text: str, first_line: int = 1) -> Iterator[Mutant]:
    """Yield the mutants of a kernel, one for each operator and line where the pattern stands.

    Args:
        text: A kernel file.
        first_line: Lines before it, such as template functions, stay as they are.
    """
    lines = text.split("\n")
    for operator in OPERATORS:
        for number, line in enumerate(lines, 1):
            if number < first_line or line.lstrip().startswith(("//", "#")):
                continue
            changed = operator.pattern.sub(operator.replacement, line, count=1)
            if changed != line:
                yield Mutant(operator.name, number, "\n".join((*lines[: number - 1], changed, *lines[number:])))


def sampled(text: str, count: int, seed: int, first_line: int = 1) -> tuple[Mutant, ...]:
    """Return some mutants, operators in turn, so that no kind of error outnumbers the others.

    Args:
        text: A kernel file.
        count: How many; fewer where there are not as many.
        seed: Of the choice.
        first_line: Lines before it stay as they are.
    """
    groups: dict[str, list[Mutant]] = {}
    for mutant in shuffled(mutants(text, first_line), seed, lambda each: each.key):
        groups.setdefault(mutant.operator, []).append(mutant)
    names = shuffled(groups, seed, str)
    rounds = max(map(len, groups.values()), default=0)
    turns = [groups[name][at] for at in range(rounds) for name in names if at < len(groups[name])]
    return tuple(turns[:count])


def check_teaching(text: str, task: str, variant: str, arch: str, solutions: Solutions | None = None) -> None:
    """Accept a kernel as one whose mutants may be trained on.

    Args:
        text: The kernel.
        task: That it solves.
        variant: Of the task.
        arch: For which it is.
        solutions: By default read anew.

    Raises:
        UsageError: if the variant is held out for evaluation, or the kernel is like a proven solution.
    """
    split = next((each.split for each in variants_of(load_task(task)) if each.name == variant), None)
    if split != "train":
        raise UsageError(
            f"{task}/{variant} is {'held out for evaluation' if split else 'unknown'}; repair tasks are made of "
            "kernels for variants to train on (`ptxgym list --variants`)"
        )
    found = (solutions or Solutions()).nearest(text, arch)
    if found.share >= COPY:
        raise UsageError(
            f"the kernel shares {found.share:.0%} with the proven solution {found.solution}; repair tasks are never "
            "made of an evaluated task's solution"
        )
