"""`audit`: a kernel against the contract, item by item, without judging numbers."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator

from ptxgym.audit.code import (
    check_bytes,
    check_counts,
    check_descriptors,
    check_partners,
    check_places,
    check_readable,
    check_tensor_memory,
)
from ptxgym.audit.facts import Facts, gather
from ptxgym.audit.items import ITEMS, Item
from ptxgym.audit.model import Audit, Check, Outcome
from ptxgym.audit.observation import Observation
from ptxgym.audit.plans import check_bases, check_host, check_launches, check_maps, check_sizes
from ptxgym.audit.runs import check_findings, check_results
from ptxgym.cache import Cache
from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Device
from ptxgym.envs import EnvConfig
from ptxgym.variants import load_variant
from ptxgym.verdict import Failure

CHECKS: tuple[Callable[[Facts], Iterator[Observation]], ...] = (
    check_host, check_launches, check_bases, check_maps, check_sizes, check_readable, check_partners, check_places,
    check_tensor_memory, check_bytes, check_counts, check_descriptors, check_findings, check_results,
)  # fmt: skip
_SHOWN = 4
"""Of equal rank, sentences that an item shows in one line; the rest goes to `further`."""


def audit(text: str, config: EnvConfig, device: Device | None = None, cache: Cache | None = None) -> Audit:
    """Check `text` against the contract of an environment.

    Args:
        text: A whole kernel file.
        config: The environment; its variant and architecture count.
        device: Where kernels are emulated; by default an emulator that ends with this call.
        cache: Where builds are kept; by default the user's.

    Raises:
        InfrastructureError: if the machine failed.
    """
    task = load_variant(config.task, config.variant)
    with contextlib.ExitStack() as closing:
        if device is None:
            device = closing.enter_context(contextlib.closing(EmulatorDevice()))
        facts = gather(text, task, config.arch, device, cache or Cache())
    return Audit(
        env=config.name,
        variant=config.variant,
        task=config.task,
        arch=config.arch,
        source_sha256=hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest(),
        shapes=tuple(dict(axes) for axes in facts.shapes),
        runs=tuple(map(str, facts.runs)),
        checks=checks_of(facts),
    )


def checks_of(facts: Facts) -> tuple[Check, ...]:
    """Return every item of the checklist with its outcome."""
    seen = [observation for check in CHECKS for observation in check(facts)]
    return tuple(_check(item, [one for one in seen if one.item == item.name], facts) for item in ITEMS)


def _check(item: Item, seen: list[Observation], facts: Facts) -> Check:
    """Put together what is known of one item: a violation outweighs a doubt, a doubt what was seen to hold."""
    for outcome in (Outcome.VIOLATED, Outcome.UNKNOWN):
        against = [one for one in seen if one.outcome is outcome]
        if against:
            return _made(item, outcome, against, facts)
    if isinstance(facts.built, Failure):
        return _plain(item, Outcome.UNKNOWN, "there is no build to look at")
    if not facts.readable and (item.by_run or item.needs):
        return _plain(item, Outcome.UNKNOWN, "the PTX of the kernels could not be read")
    if item.needs and not facts.features & set(item.needs):
        if "map" in item.needs and not facts.recorded:
            return _plain(item, Outcome.UNKNOWN, _unrecorded(facts))
        return _plain(item, Outcome.NOT_APPLICABLE, f"no {' or '.join(item.needs)} in the kernels launched")
    if not facts.recorded and item.name != "host.compiles":
        return _plain(item, Outcome.UNKNOWN, _unrecorded(facts))
    if item.by_run and not facts.ended:
        return _plain(item, Outcome.UNKNOWN, _broken_off(facts))
    return _made(item, Outcome.KEPT, seen, facts)


def _unrecorded(facts: Facts) -> str:
    failure = next((plan for plan in facts.plans if isinstance(plan, Failure)), None)
    return f"there is no launch to look at: {failure.code}" if failure else "there is no launch to look at"


def _broken_off(facts: Facts) -> str:
    failure = next((run.result for run in facts.runs if isinstance(run.result, Failure)), None)
    return f"a run broke off ({failure.code}) before this could be seen" if failure else "not every shape could be run"


def _plain(item: Item, outcome: Outcome, found: str) -> Check:
    return Check(name=item.name, group=item.group, title=item.title, source=item.source, outcome=outcome, found=found)


def _made(item: Item, outcome: Outcome, seen: Iterable[Observation], facts: Facts) -> Check:
    distinct = list(dict.fromkeys(seen))
    if outcome is Outcome.KEPT:
        texts = [one.found for one in distinct]
        found = "; ".join(texts[:_SHOWN]) or f"nothing against it in {len(facts.runs)} runs"
        return _plain(item, outcome, found).model_copy(update={"further": tuple(texts[_SHOWN:])})
    first = distinct[0]
    return Check(
        name=item.name,
        group=item.group,
        title=item.title,
        source=item.source,
        outcome=outcome,
        found=first.found,
        line=first.line,
        source_line=facts.source_line(first.line),
        remedy=first.remedy,
        code=first.code,
        further=tuple(f"line {one.line}: {one.found}" if one.line else one.found for one in distinct[1:]),
    )
