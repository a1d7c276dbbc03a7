"""What a server keeps of the evaluations that it accepted: who asks for which, and what came of it.

All methods are coroutines of one event loop; whatever may block is done on threads. What is accepted is on disk before
anyone is told so, and goes on after a restart, whoever still asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import ptxgym
from ptxgym.cluster.protocol import Request, Service, ServiceStatus, Ticket
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.model import Tier
from ptxgym.errors import InfrastructureError, Overloaded, PtxgymError, UsageError
from ptxgym.serve.journal import Accepted, Journal
from ptxgym.serve.wire import About, Answer, Asked
from ptxgym.task import ARCHITECTURES, task_sha256
from ptxgym.variants import load_variant
from ptxgym.verdict import Verdict

THREADS = 32
ERRORS_KEPT = 1024
"""How many evaluations that ended without a verdict are remembered for those who ask again."""
log = logging.getLogger("ptxgym.serve")

T = TypeVar("T")


class Served(Service, Protocol):
    """A service that says what it is; `ptxgym.cluster.EvaluationService` is one."""

    @property
    def tier(self) -> Tier:
        """How its GPUs measure."""
        ...

    @property
    def epoch(self) -> int:
        """Of its conditions."""
        ...

    @property
    def secret_hash(self) -> str:
        """Of the secret from which it draws."""
        ...

    @property
    def deadline_s(self) -> float:
        """How long an evaluation is waited for where its request does not say."""
        ...

    def versions(self) -> Mapping[str, str]:
        """Wait for the first worker, and return on what all verdicts depend."""
        ...

    def gpu(self, arch: str) -> Gpu | None:
        """Return the GPU that measures kernels for an architecture."""
        ...


@dataclass(eq=False)
class _Open:
    """An evaluation in work."""

    answered: asyncio.Future[Verdict | None]
    """None where all who are on the list let go. Others may wait, who asked an earlier process."""
    tickets: dict[str, Ticket] = field(default_factory=dict)
    """By asker."""
    until: float = 0.0


class Desk:
    """Accepts evaluations for a service, once each."""

    def __init__(self, service: Served, journal: Journal) -> None:
        """Take over a service and a journal; `begin` starts the work."""
        self._service, self._journal = service, journal
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="ptxgym-serve")
        self._open: dict[str, _Open] = {}
        self._errors: OrderedDict[str, BaseException] = OrderedDict()
        self._about: About | None = None
        self._trouble = ""
        self._begun = self._leaving = self._closed = False
        self.left = asyncio.Event()
        """Set when nobody is to be kept waiting any more."""

    async def begin(self) -> None:
        """Wait for the first worker, and go on with what an earlier process accepted.

        Raises:
            UsageError: if no worker can ever serve.
        """
        while self._about is None:
            try:
                self._about = await self._call(self._describe)
            except InfrastructureError as error:  # workers are hired again and again
                self._trouble = f": {error}"
                log.warning("no worker yet: %s", error)
        for accepted in await self._call(self._journal.left):
            await self._resume(accepted)
        self._begun = True

    @property
    def about(self) -> About:
        """What the service is.

        Raises:
            Overloaded: if it has no worker yet.
        """
        if self._about is None:
            raise Overloaded(f"the service is starting; try again in a moment{self._trouble}")
        return self._about

    async def accept(self, asked: Asked) -> Answer:
        """Accept an evaluation, or join one.

        Raises:
            Overloaded: if there is no room, or the service is starting or ending.
            UsageError: if it cannot be served here.
        """
        about = self.about
        if self._leaving:
            raise Overloaded("the service is shutting down; ask again once it is back")
        ticket = await self._call(functools.partial(self._submit, asked, 0.0))
        if ticket.done():
            return Answer(key=ticket.key, conditions=about.conditions, verdict=ticket.result(0))
        await self._enter(ticket, asked)
        return Answer(key=ticket.key, conditions=about.conditions)

    async def answer(self, key: str, wait_s: float) -> Answer | None:
        """Wait for what comes of an evaluation; None if none was accepted under the key, or all let go of it.

        Then whoever still waits, since an earlier process accepted it from him, is to ask again.

        Raises:
            Exception: whatever the evaluation ended with instead of a verdict.
        """
        conditions = self.about.conditions
        found = self._open.get(key)
        if found is None:
            if key in self._errors:
                raise self._errors[key]
            verdict = await self._call(functools.partial(self._service.finished, key))
            return None if verdict is None else Answer(key=key, conditions=conditions, verdict=verdict)
        leaving = asyncio.ensure_future(self.left.wait())
        await asyncio.wait((found.answered, leaving), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        verdict = None
        if found.answered.done() and (verdict := found.answered.result()) is None:
            return None
        return Answer(key=key, conditions=conditions, verdict=verdict)

    async def let_go(self, key: str, asker: str) -> bool:
        """Take an asker off an evaluation; return whether he was on it.

        Raises:
            Overloaded: if that is not known yet, as an earlier process may have accepted it.
        """
        found = self._open.get(key)
        if found is None and not self._begun:
            raise Overloaded("the service is starting; try again in a moment")
        ticket = None if found is None else found.tickets.get(asker)
        if ticket is None:
            return False
        await self._call(ticket.cancel)
        return True

    async def status(self) -> ServiceStatus:
        """Return what the service is doing."""
        return await self._call(self._service.status)

    def leave(self) -> None:
        """Accept nothing more."""
        self._leaving = True

    async def idle(self) -> None:
        """Wait until all that was accepted is answered."""
        while self._open:
            await asyncio.wait([found.answered for found in self._open.values()])
            await asyncio.sleep(0)

    def close(self) -> None:
        """Let go of everything; what is not answered stays on disk."""
        self._closed = True
        self.left.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _resume(self, accepted: Accepted) -> None:
        left_s = accepted.until - time.time()
        try:
            if left_s > 0:
                asked = accepted.asked.model_copy(update={"deadline_s": left_s})
                ticket = await self._call(functools.partial(self._submit, asked, None))
                if not ticket.done():
                    await self._enter(ticket, asked)
                    if ticket.key == accepted.key:
                        return
        except PtxgymError as error:
            log.warning("an evaluation that was accepted before cannot go on: %s", error)
        await self._call(functools.partial(self._journal.drop, accepted.key))

    async def _enter(self, ticket: Ticket, asked: Asked) -> None:
        """Put a ticket on the list, and its evaluation on disk."""
        self._errors.pop(ticket.key, None)
        loop = asyncio.get_running_loop()
        found = self._open.get(ticket.key)
        if found is None:
            found = self._open[ticket.key] = _Open(loop.create_future())
        before = found.tickets.get(asked.asker)
        found.tickets[asked.asker] = ticket
        until = time.time() + (asked.deadline_s or self._service.deadline_s)

        def done(_: Future[Verdict]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: the journal has it
                loop.call_soon_threadsafe(self._settle, ticket.key, found)

        ticket.future.add_done_callback(done)
        if before is not None and not before.done():
            await self._call(before.cancel)
        if until > found.until:
            found.until = until
            await self._call(functools.partial(self._journal.put, Accepted(key=ticket.key, asked=asked, until=until)))
            if self._open.get(ticket.key) is not found:  # answered meanwhile
                await self._call(functools.partial(self._journal.drop, ticket.key))

    def _settle(self, key: str, found: _Open) -> None:
        """Answer all who wait once a ticket has a verdict, or none will have one."""
        if self._closed:
            return
        ended = [ticket.future for ticket in found.tickets.values() if ticket.done()]
        errors = {future: error for future in ended if (error := _error(future)) is not None}
        good = [future for future in ended if future not in errors and not future.cancelled()]
        if found.answered.done() or not (good or len(ended) == len(found.tickets)):
            return
        if good:
            found.answered.set_result(good[0].result())
        elif not errors:
            found.answered.set_result(None)
        else:
            error = list(errors.values())[-1]
            found.answered.set_exception(error)
            found.answered.exception()  # nobody may be waiting
            self._errors[key] = error
            while len(self._errors) > ERRORS_KEPT:
                self._errors.popitem(last=False)
            if not isinstance(error, PtxgymError):
                log.error("an evaluation came upon a fault", exc_info=error)
        if self._open.get(key) is found:
            del self._open[key]
        self._threads.submit(self._journal.drop, key)

    def _submit(self, asked: Asked, wait_s: float | None) -> Ticket:
        task = load_variant(asked.task, asked.variant)
        if asked.task_sha256 is not None and asked.task_sha256 != task_sha256(task):
            raise UsageError(
                f"task {task.label} is not the same here as where you are: install the same version of ptxgym, and "
                "give both sides the same PTXGYM_CONTENT"
            )
        request = Request(**asked.model_dump(exclude={"task_sha256", "asker"}))
        return self._service.submit(request, wait_s=wait_s)

    def _describe(self) -> About:
        service = self._service
        return About(
            ptxgym=ptxgym.__version__,
            tier=service.tier,
            epoch=service.epoch,
            conditions=service.secret_hash,
            deadline_s=service.deadline_s,
            versions=dict(service.versions()),
            gpus={arch: service.gpu(arch) for arch in ARCHITECTURES},
        )

    async def _call(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


def _error(future: Future[Verdict]) -> BaseException | None:
    """Return what a ticket failed with; None where there is a verdict, or its asker let go."""
    return None if future.cancelled() else future.exception()
