"""An executor whose inputs and outputs lie in memory that the judge process has made for it.

What a call asks of the driver, it asks of the one driver of all GPUs of a host. Were every input and every result a
region of its own, which each new context imports, and maps for each copy, that would be most of what an evaluation
asks beside its context (docs/cluster.md). So buffers have places, one more of each size than a call needs, that the
context imports once. Before a call the judge process copies the pristine inputs to places that it draws, the executor
maps them at fresh addresses as long as the call lasts, and the judge process copies the results from there.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from ptxgym.build.model import Build
from ptxgym.device.cuda.executor import Call, Executor, Poison, first_byte
from ptxgym.device.cuda.regions import Region, RegionPool
from ptxgym.device.cuda.tools import Handles
from ptxgym.errors import UsageError
from ptxgym.plan.model import LaunchPlan
from ptxgym.verdict import Failure


class PlacedExecutor:
    """See `tools.Running`; call `release` when the executor's context has ended."""

    def __init__(self, executor: Executor, pool: RegionPool) -> None:
        """Let `executor` use memory of `pool`."""
        self.executor = executor
        self._pool = pool
        self._plans: Sequence[LaunchPlan] = ()
        self._last: int | None = None
        self._free: dict[int, list[Region]] = {}
        """By size, between calls."""
        self._no_spare: set[int] = set()
        """Sizes of which there was no memory for one more."""

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
        poison: Mapping[str, Poison] = {},
    ) -> Call | Failure:
        """Run one cold call; the caller holds the device lock. See `Executor.call`.

        Args:
            plan: Index of the plan, as loaded.
            inputs: Regions by name, which stay as they are.
            results: Regions by buffer name, inputs included, that get what the call leaves.
            timeout_s: For the operations.
            flush: As there.
            poison: As there.

        Raises:
            InfrastructureError: if the machine failed, or its memory is short.
            UsageError: if an input is missing, or memory has the wrong size.
        """
        if self._last != plan:  # buffers of other sizes
            self._give_up()
        self._last = plan
        sizes = {b.name: b.size_bytes for b in self._plans[plan].buffers if b.role in ("input", "output")}
        wanted = {b.name for b in self._plans[plan].buffers if b.role == "input"}
        results = {name: target for name, target in results.items() if name in sizes}
        _check({name: inputs.get(name) for name in wanted} | dict(results), sizes)
        places: dict[str, Region] = {}
        try:
            for name, size_bytes in sizes.items():
                places[name] = self._draw(size_bytes)
            for name in wanted:
                places[name].fill(first_byte(places[name]), inputs[name])
            Region.finish()
            called = self.executor.call(plan, {}, {}, timeout_s=timeout_s, flush=flush, poison=poison, places=places)
            if isinstance(called, Call):
                for name, target in results.items():
                    target.take(places[name], first_byte(places[name]))
                Region.finish()
            return called
        finally:
            for place in places.values():
                self._free[place.size_bytes].append(place)

    def spoil(self) -> None:
        """Have the process take no other submission."""
        self.executor.spoil()

    def release(self) -> None:
        """Give the memory back, unless the context may still write to it."""
        free, self._free = self._free, {}
        if self.executor.ended:
            for places in free.values():
                for place in places:
                    self._pool.give_back(place)

    def _give_up(self) -> None:
        """Give the memory back that no call uses, while the context goes on."""
        for places in self._free.values():
            while places:
                self.executor.forget(places[-1])
                self._pool.give_back(places.pop())

    def _draw(self, size_bytes: int) -> Region:
        """Return one of two at least, if memory allows: what a kernel leaves need not wait there in the next call."""
        free = self._free.setdefault(size_bytes, [])
        if not free:
            free.append(self._pool.take(size_bytes))
        if len(free) == 1 and size_bytes not in self._no_spare:
            spare = self._pool.take_spare(size_bytes)
            if spare is None:
                self._no_spare.add(size_bytes)  # it is worth less than the call, and than asking again in a race
            else:
                free.append(spare)
        return free.pop(secrets.randbelow(len(free)))


def _check(regions: Mapping[str, Region | None], sizes: Mapping[str, int]) -> None:
    for name, region in regions.items():
        if region is None:
            raise UsageError(f"no memory for the input {name}")
        if region.size_bytes != sizes[name]:
            raise UsageError(f"the memory for {name} has {region.size_bytes} bytes; the plan wants {sizes[name]}")
