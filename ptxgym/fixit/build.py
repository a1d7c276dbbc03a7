"""Repairs and rationales → the rows of a training set: what must not be in it is left out, the rest is balanced."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ptxgym.agent.prompting import fenced
from ptxgym.fixit.leaks import any_canary
from ptxgym.fixit.rationalise import Pair, pairs, rationale_leaks
from ptxgym.fixit.recipe import BuildRules
from ptxgym.fixit.records import Rationale, Row
from ptxgym.fixit.sampling import shuffled, stratified
from ptxgym.fixit.solutions import Solutions
from ptxgym.fixit.workshop import Workshop
from ptxgym.knowledge import estimate_tokens
from ptxgym.similarity import Shingles, alike, edit, shingles
from ptxgym.store.records import Message

DIRECT = "direct"


@dataclass(frozen=True)
class Built:
    """The rows of a set, and why the others are not in it."""

    rows: tuple[Row, ...]
    dropped: dict[str, int]
    """By reason: `no_rationale`, `solution`, `canary`, `encoding`, `too_many_tokens`, `duplicate`, `balance`, or a code
    of `ptxgym.fixit.leaks`."""
    stages: dict[str, int]
    """How many there were: mined, settled, repaired (of direct rows: distinct), with a rationale, kept."""


def build(workshop: Workshop, solutions: Solutions, *, direct: bool = False) -> Built:
    """Make the rows of a set.

    Args:
        workshop: Where failures, repairs and rationales lie.
        solutions: That no row may copy.
        direct: Whether to make the comparison data: task → rationale and kernel, without the failure.

    Raises:
        UsageError: if nothing is repaired.
    """
    rules, seed = workshop.front.recipe.build, workshop.front.seed
    rationales = workshop.rationales(direct)
    repaired = pairs(workshop, direct)
    dropped: dict[str, int] = {}
    rows: dict[str, Row] = {}
    for pair in repaired:
        rationale = rationales.get(pair.failure.id)
        if rationale is None or not rationale.text:
            why = "no_rationale" if rationale is None or not rationale.rejected else rationale.rejected[-1]
        else:
            row = _row(pair, rationale, workshop, direct)
            why = _unfit(row, pair, rationale, workshop, solutions, direct)
            if not why:
                rows[row.id] = row
        if why:
            dropped[why] = dropped.get(why, 0) + 1
    by_id = {pair.failure.id: pair for pair in repaired}
    distinct = _distinct(shuffled(rows.values(), seed, lambda row: row.id), by_id, rules, direct)
    kept = _balanced(distinct, rules, seed)
    for reason, count in (("duplicate", len(rows) - len(distinct)), ("balance", len(distinct) - len(kept))):
        if count:
            dropped[reason] = count
    stages = {
        "mined": len(workshop.mined),
        "settled": len(workshop.repairs()),
        "repaired": len(pairs(workshop)),
        **({"distinct": len(repaired)} if direct else {}),
        "with_rationale": sum(bool(each.text) for each in rationales.values()),
        "kept": len(kept),
    }
    return Built(tuple(kept), dict(sorted(dropped.items())), stages)


def answer(rationale: str, kernel: str) -> str:
    """Return what is learnt: the rationale, then the kernel."""
    return f"<think>\n{rationale.strip()}\n</think>\n\n{fenced(kernel)}\n"


def _row(pair: Pair, rationale: Rationale, workshop: Workshop, direct: bool) -> Row:
    failure, repair = pair.failure, pair.repair
    prompt = [Message(role="user", content=pair.task_prompt())]
    if not direct:
        prompt.append(Message(role="assistant", content=fenced(failure.source) + "\n"))
        prompt.append(Message(role="user", content=failure.feedback))
    completion = Message(role="assistant", content=answer(rationale.text, repair.source))
    return Row(
        id=failure.id,
        recipe=workshop.front.recipe.name,
        prompt=tuple(prompt),
        completion=(completion,),
        env=failure.env,
        task=failure.task,
        variant=failure.variant,
        arch=failure.arch,
        split=failure.split,
        kind=DIRECT if direct else failure.kind,
        code="" if direct else failure.code,
        turn=0 if direct else failure.turn,
        score=repair.score,
        tokens=sum(estimate_tokens(message.content) for message in (*prompt, completion)),
        source_run=failure.run,
    )


def _unfit(row: Row, pair: Pair, rationale: Rationale, workshop: Workshop, solutions: Solutions, direct: bool) -> str:
    """Return why a row may not be in the set, or nothing."""
    recipe, canaries = workshop.front.recipe, workshop.front.canaries
    failure, kernel = pair.failure, pair.repair.source
    whole = (*row.prompt, *row.completion)
    if any(not _encodable(message.content) for message in whole):
        return "encoding"
    if any_canary(whole, canaries):
        return "canary"
    texts = (kernel, rationale.text) if direct else (kernel, rationale.text, failure.source)
    if any(solutions.nearest(text, failure.arch).share >= recipe.build.solution for text in texts):
        return "solution"
    task = row.prompt[0].content
    if why := rationale_leaks(pair, rationale.text, recipe.rationale, canaries, task=task, direct=direct):
        return why[0]
    return "too_many_tokens" if row.tokens > recipe.build.most_tokens else ""


def _encodable(text: str) -> bool:
    """Whether UTF-8 holds the text: a model may answer with lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _distinct(rows: Iterable[Row], pairs_: dict[str, Pair], rules: BuildRules, direct: bool) -> list[Row]:
    """Leave out rows that are like an earlier one of the same task, in kernel and edit."""
    kept: dict[tuple[str, str], list[tuple[Shingles, Shingles]]] = {}
    found = []
    for row in rows:
        pair = pairs_[row.id]
        if direct:
            mark = shingles(pair.repair.source), frozenset[tuple[str, ...]]()
        else:
            mark = shingles(pair.failure.source), edit(pair.failure.source, pair.repair.source)
        known = kept.setdefault((row.env, row.variant), [])
        if any(_same(mark, other, rules.duplicate) for other in known):
            continue
        known.append(mark)
        found.append(row)
    return found


def _same(one: tuple[Shingles, Shingles], other: tuple[Shingles, Shingles], least: float) -> bool:
    return all(alike(mine, theirs) >= least for mine, theirs in zip(one, other, strict=True))


def _balanced(rows: Iterable[Row], rules: BuildRules, seed: int) -> list[Row]:
    tasks: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        tasks.setdefault((row.env, row.variant), []).append(row)
    kept = [
        row
        for _, group in sorted(tasks.items())
        for row in stratified(
            group, rules.per_task, rules.balance, seed, lambda each: (each.kind, each.turn), lambda each: each.id
        )
    ]
    return stratified(
        kept,
        rules.size,
        rules.balance,
        seed,
        lambda row: (row.env, row.variant, row.kind, row.turn),
        lambda row: row.id,
    )
