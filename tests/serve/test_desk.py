"""What a server keeps of evaluations, without HTTP and without workers: who is told what when askers leave."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from ptxgym.cluster.protocol import Request, ServiceStatus, Ticket
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.model import Tier
from ptxgym.errors import WorkerDied
from ptxgym.serve.desk import Desk
from ptxgym.serve.journal import Journal
from ptxgym.serve.wire import Answer, Asked
from ptxgym.verdict import Verdict
from tests.store.samples import verdict

LONG_S = 600.0
"""For what is not to be waited for."""


class Pending:
    """A service that accepts everything and does nothing: a test resolves the tickets."""

    tier: Tier = "standard"
    epoch = 0
    secret_hash = "hash"
    deadline_s = 3600.0

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []

    def submit(self, request: Request, *, wait_s: float | None = None) -> Ticket:
        key = hashlib.sha256(request.text.encode()).hexdigest()
        self.tickets.append(Ticket(request, key, lambda ticket: ticket.future.cancel()))  # type: ignore[arg-type,return-value]
        return self.tickets[-1]

    def versions(self) -> Mapping[str, str]:
        return {}

    def gpu(self, arch: str) -> Gpu | None:
        return None

    def finished(self, key: str) -> Verdict | None:
        return None

    def status(self) -> ServiceStatus:
        raise AssertionError("a desk asks for no status")

    def close(self) -> None:
        pass


def asked(asker: str, deadline_s: float) -> Asked:
    return Asked(text="// text", task="gemm", asker=asker, deadline_s=deadline_s)


async def begun(folder: Path) -> tuple[Desk, Pending, Journal]:
    service, journal = Pending(), Journal(folder)
    desk = Desk(service, journal)
    await desk.begin()
    return desk, service, journal


async def waiting(desk: Desk, key: str) -> asyncio.Task[Answer | None]:
    task = asyncio.ensure_future(desk.answer(key, LONG_S))
    await asyncio.sleep(0.01)
    assert not task.done()
    return task


def test_who_asked_an_earlier_process_asks_anew_where_the_last_one_on_the_list_lets_go(tmp_path: Path) -> None:
    async def main() -> None:
        desk, _, journal = await begun(tmp_path)
        key = (await desk.accept(asked("a", 100))).key
        await desk.accept(asked("b", 50))
        desk.close()
        journal.close()
        desk, service, _ = await begun(tmp_path)
        assert len(service.tickets) == 1, "on disk is who waits longest"
        other = await waiting(desk, key)
        assert await desk.let_go(key, "a")
        assert await other is None and await desk.answer(key, 0) is None, "not known: ask again"
        await desk.accept(asked("b", 40))
        other = await waiting(desk, key)
        found = verdict()
        service.tickets[-1].future.set_result(found)
        answer = await other
        assert answer is not None and answer.verdict == found
        desk.close()

    asyncio.run(main())


def test_work_that_others_on_the_list_wait_for_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        desk, service, _ = await begun(tmp_path)
        key = (await desk.accept(asked("a", 100))).key
        await desk.accept(asked("b", 50))
        other = await waiting(desk, key)
        assert await desk.let_go(key, "a") and not await desk.let_go(key, "c")
        await asyncio.sleep(0.01)
        assert not other.done()
        service.tickets[1].future.set_result(verdict())
        answer = await other
        assert answer is not None and answer.verdict is not None
        desk.close()

    asyncio.run(main())


Ending = Callable[[Desk, Pending, str], Awaitable[object]]


async def fail(desk: Desk, service: Pending, key: str) -> None:
    service.tickets[0].future.set_exception(WorkerDied("it was killed"))


async def let_go(desk: Desk, service: Pending, key: str) -> None:
    assert await desk.let_go(key, "b")


@pytest.mark.parametrize("endings", [(fail, let_go), (let_go, fail)], ids=["", "the other way round"])
def test_a_failure_is_told_whoever_let_go_beside_it(tmp_path: Path, endings: tuple[Ending, ...]) -> None:
    async def main() -> None:
        desk, service, _ = await begun(tmp_path)
        key = (await desk.accept(asked("a", 100))).key
        await desk.accept(asked("b", 50))
        other = await waiting(desk, key)
        for ending in endings:
            await ending(desk, service, key)
        for telling in (other, desk.answer(key, 0)):  # the second asks later
            with pytest.raises(WorkerDied, match="it was killed"):
                await telling
        desk.close()

    asyncio.run(main())
