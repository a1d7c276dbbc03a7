"""An executor whose inputs and outputs lie in memory that the judge process has made for it.

What a call asks of the driver, it asks of the one driver of all GPUs of a host. Were every input and every result a
region of its own, which each new context imports, and maps for each copy, that would be most of what an evaluation
asks beside its context (docs/cluster.md). So each buffer has two places that the context imports once. Before a call
the judge process copies the pristine inputs to one of the two, the executor maps it at a fresh address as long as the
call lasts, and the judge process copies the results from it. No context of a submission ever maps what is pristine.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from ptxgym.build.model import Build
from ptxgym.device.cuda.executor import Call, Executor, Poison, first_byte
from ptxgym.device.cuda.regions import Region, RegionPool
from ptxgym.device.cuda.tools import Handles
from ptxgym.plan.model import LaunchPlan
from ptxgym.verdict import Failure

PLACES = 2
"""For each buffer: one is drawn for each call, so that what a kernel leaves in one does not wait in the next call."""


class PlacedExecutor:
    """See `tools.Running`; call `release` when the executor's context has ended."""

    def __init__(self, executor: Executor, pool: RegionPool) -> None:
        """Let `executor` use memory of `pool`."""
        self.executor = executor
        self._pool = pool
        self._plans: Sequence[LaunchPlan] = ()
        self._places: dict[tuple[str, int], list[Region]] = {}

    def load(self, build: Build, plans: Sequence[LaunchPlan]) -> Failure | None:
        """Load module and plans; see `Executor.load`."""
        self._plans = plans
        return self.executor.load(build, plans)

    def call(
        self,
        plan: int,
        inputs: Handles,
        results: Handles,
        *,
        timeout_s: float,
        flush: bool = False,
        profile: bool = False,
        poison: Mapping[str, Poison] = {},
    ) -> Call | Failure:
        """Run one cold call; the caller holds the device lock. See `Executor.call`.

        Args:
            plan: Index of the plan, as loaded.
            inputs: Regions by name, which stay as they are.
            results: Regions by buffer name, inputs included, that get what the call leaves.
            timeout_s: For the operations.
            flush: As there.
            profile: As there.
            poison: As there.
        """
        places = {
            buffer.name: self._place(buffer.name, buffer.size_bytes)
            for buffer in self._plans[plan].buffers
            if buffer.role in ("input", "output")
        }
        given = [(places[name], source) for name, source in inputs.items() if name in places]
        for place, source in given:
            place.fill(first_byte(place), source)
        Region.finish()
        called = self.executor.call(
            plan, {}, {}, timeout_s=timeout_s, flush=flush, profile=profile, poison=poison, places=places
        )
        if isinstance(called, Call):
            for name, target in results.items():
                if name in places:
                    target.take(places[name], first_byte(places[name]))
            Region.finish()
        return called

    def spoil(self) -> None:
        """Have the process take no other submission."""
        self.executor.spoil()

    def release(self) -> None:
        """Give the memory back, unless the context may still write to it."""
        places, self._places = self._places, {}
        if not self.executor.ended:
            return
        for regions in places.values():
            for region in regions:
                self._pool.give_back(region)

    def _place(self, name: str, size_bytes: int) -> Region:
        held = self._places.setdefault((name, size_bytes), [])
        while len(held) < PLACES:
            held.append(self._pool.take(size_bytes))
        return held[secrets.randbelow(PLACES)]
