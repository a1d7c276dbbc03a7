"""Pristine inputs and result slots in GPU memory that executors may map; used in the judge process alone."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from ptxgym.device.cuda.regions import Region, RegionPool
from ptxgym.judge.conditions import Case
from ptxgym.judge.references import expect
from ptxgym.task import Task

INPUTS_SHARE = 0.2
"""Of the GPU's memory, for inputs that are kept; a case of GEMM's hardware size takes 160 MB."""


class _Inputs(dict[str, Region]):
    """Inputs of one case; their memory goes back when the last who uses them lets go."""

    def __del__(self) -> None:
        for region in self.values():
            region.close()


class GpuMemory:
    """See `tools.Memory`."""

    def __init__(self, memory_bytes: int, slots: RegionPool) -> None:
        """Use a GPU of so much memory, and results of `slots`."""
        self._limit_bytes = int(INPUTS_SHARE * memory_bytes)
        self._inputs: OrderedDict[tuple[str, int, Case], _Inputs] = OrderedDict()
        self._slots = slots
        self._mutex = threading.Lock()

    def inputs(self, task: Task, case: Case) -> Mapping[str, Region]:
        """Return the inputs of `case` as bytes, drawn once; hold on to the mapping while they are used."""
        key = (f"{task.folder}:{task.label}", task.revision, case)
        with self._mutex:
            known = self._inputs.pop(key, None)
            if known is None:
                known = self._copied(task, case)
            self._inputs[key] = known
            while self._held_bytes() > self._limit_bytes and len(self._inputs) > 1:
                self._inputs.popitem(last=False)
            return known

    @contextmanager
    def slot(self, sizes_bytes: Mapping[str, int]) -> Iterator[Mapping[str, Region]]:
        """Lend memory for results, by name."""
        with ExitStack() as stack:
            yield {name: stack.enter_context(self._slots.slot(size)) for name, size in sizes_bytes.items()}

    def close(self) -> None:
        """Give all idle memory back."""
        with self._mutex:
            self._inputs.clear()
        self._slots.close()

    def _held_bytes(self) -> int:
        return sum(region.mapped_bytes for inputs in self._inputs.values() for region in inputs.values())

    def _copied(self, task: Task, case: Case) -> _Inputs:
        import cupy

        found = _Inputs()
        for name, array in expect(task, case, cupy).inputs.items():
            region = found[name] = Region.allocate(array.nbytes)
            region.array[:] = array.reshape(-1).view(cupy.uint8)
        cupy.cuda.get_current_stream().synchronize()
        return found
