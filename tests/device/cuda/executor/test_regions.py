"""The pool of regions, with memory that is none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ptxgym.device.cuda import regions
from ptxgym.device.cuda.regions import Region, RegionPool
from ptxgym.errors import InfrastructureError

MIB = 1 << 20


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Region]:
    """Allocations without a GPU; the regions that were closed."""
    done: list[Region] = []

    def allocate(size_bytes: int) -> Region:
        return Region(size_bytes, -(-size_bytes // (2 * MIB)) * 2 * MIB, None, 0, -1)

    monkeypatch.setattr(regions.Region, "allocate", allocate)
    monkeypatch.setattr(regions.Region, "close", lambda region: done.append(region))
    return done


def test_regions_are_used_again_by_their_exact_size(closed: list[Region]) -> None:
    pool = RegionPool(8 << 30)
    first = pool.take(100)
    pool.give_back(first)
    assert pool.take(101) is not first
    assert pool.take(100) is first
    assert pool.take(100) is not first
    assert closed == []


def test_what_is_idle_has_a_limit_in_allocated_bytes(closed: list[Region]) -> None:
    pool = RegionPool(limit_bytes=4 * MIB)
    taken = [pool.take(1) for _ in range(3)]
    for region in taken:
        pool.give_back(region)
    assert closed == taken[2:]
    assert pool.take(1) in taken[:2]  # and its bytes are free again
    pool.give_back(taken[2])
    assert closed == taken[2:]
    pool.close()
    assert len(closed) == 3


def test_idle_regions_make_room_for_another_size(closed: list[Region], monkeypatch: pytest.MonkeyPatch) -> None:
    pool = RegionPool(8 << 30)
    idle = pool.take(5 * MIB)
    pool.give_back(idle)
    allocate = Region.allocate

    def crowded(size_bytes: int) -> Region:
        if idle not in closed:
            raise InfrastructureError("the CUDA driver refuses a memory region")
        return allocate(size_bytes)

    monkeypatch.setattr(regions.Region, "allocate", crowded)
    assert pool.take(7 * MIB).size_bytes == 7 * MIB and closed == [idle]


def test_a_slot_is_given_back_whatever_happens(closed: list[Region]) -> None:
    pool = RegionPool(8 << 30)
    with pytest.raises(KeyError), pool.slot(5) as lent:
        raise KeyError
    assert pool.take(5) is lent


def test_serials_differ(closed: list[Region]) -> None:
    assert len({Region.allocate(1).serial for _ in range(10)}) == 10


def test_nothing_of_cuda_is_imported_before_memory_is_wanted() -> None:
    code = (
        "import sys, ptxgym.device.cuda.regions, ptxgym.device.cuda.executor;"
        "print(sorted({'cupy', 'torch', 'cuda'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
