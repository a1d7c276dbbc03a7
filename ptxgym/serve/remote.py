"""`RemoteEvaluator`: what `Evaluator("http://host:port")` makes. It needs neither Ray nor torch nor a compiler."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from concurrent import futures
from typing import ClassVar

from ptxgym import judging
from ptxgym.availability import check_tier, unmeasured_tier
from ptxgym.cache import Cache
from ptxgym.cluster.wants import wanted
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.model import Tier
from ptxgym.errors import UsageError
from ptxgym.evaluator import RANDOM_SCHEDULES, Evaluator
from ptxgym.serve.client import INTERRUPTED_S, Call, Client
from ptxgym.serve.wire import Asked
from ptxgym.submission import MAX_SOURCE_BYTES, check_text
from ptxgym.task import Task, load_arch, task_sha256
from ptxgym.threads import started
from ptxgym.variants import asked_for
from ptxgym.verdict import Verdict


class RemoteEvaluator(Evaluator):
    """Has kernel texts judged by a service somewhere else; safe to share among threads, and after a fork.

    Example:
        >>> with Evaluator("http://127.0.0.1:8000") as evaluator:             # doctest: +SKIP
        ...     verdict = evaluator.evaluate(text, "gemm", "h100")
    """

    queues: ClassVar[bool] = True

    def __init__(
        self,
        device: str,
        *,
        tier: Tier = "standard",
        secret: bytes | str | None = None,
        epoch: int = 0,
        cache: Cache | None = None,
        random_schedules: int = RANDOM_SCHEDULES,
        builds: int | None = None,
        runs: int | None = None,
    ) -> None:
        """Take the address of a service; it is not asked yet. See `Evaluator`.

        Raises:
            UsageError: if the address has another form, or something is given that the service decides.
        """
        own = {
            "secret": secret is not None,
            "cache": cache is not None,
            "random_schedules": random_schedules != RANDOM_SCHEDULES,
            "builds": builds is not None,
            "runs": runs is not None,
        }
        if given := [name for name, is_own in own.items() if is_own]:
            raise UsageError(
                f"the service at an address has a {given[0]} of its own; leave {' and '.join(given)} out"
                if given[0] in ("secret", "cache")
                else f"{' and '.join(given)}: the service at an address decides that; leave {given[0]} out"
            )
        super().__init__("emulator", secret="the service's", epoch=epoch)
        self._own_secret = False
        self._chosen, self._tier = device, check_tier(tier)
        self._telling: set[futures.Future[None]] = set()
        """Who lets go at the service just now."""
        self._client = Client(device, tier=tier, epoch=epoch)
        self._end_with(self._client.close)

    @property
    def tier(self) -> Tier:
        """How the service's GPUs measure; raises as `gpu`."""
        return self._client.about().tier

    @property
    def secret_hash(self) -> str:
        """Hash of the secret from which the service draws; raises as `gpu`."""
        return self._client.about().conditions

    def served_versions(self) -> Mapping[str, str]:
        """Return on what versions the verdicts depend; raises as `gpu`."""
        return self._client.about().versions

    def gpu(self, arch: str) -> Gpu | None:
        """Return the service's GPU that measures kernels for `arch`; None where it emulates them.

        Raises:
            InfrastructureError: if the service does not answer.
            UsageError: if it is not what was asked for, or does not know the token.
        """
        return self._client.about().gpus.get(arch)

    def check_measures(self, arch: str) -> None:
        """Accept the tier for kernels for `arch`; see `Evaluator.check_measures`."""
        if self._tier != "standard" and self.gpu(arch) is None:
            raise unmeasured_tier(self._tier, f"{self._client.where} has no GPU for {arch}")

    def check_epoch(self) -> None:
        """Accept the epoch; see `Evaluator.check_epoch`."""
        self._client.check_epoch()

    def evaluate(
        self,
        text: str,
        task: Task | str,
        arch: str = "h100",
        workload: str | None = None,
        *,
        variant: str | None = None,
    ) -> Verdict:
        """Have `text` judged; see `Evaluator.evaluate`.

        Raises:
            DeadlineExceeded: if there is no verdict by the deadline of `ptxgym.cluster.wants`.
            InfrastructureError: if the service does not answer, or its machines failed.
            UsageError: if it cannot serve the request, or the evaluator is closed.
        """
        found = self._call(text, asked_for(task, variant), arch, workload)
        if isinstance(found, Verdict):
            return found
        with judging.withdrawing(lambda: self._let_go(found)):
            return self._client.verdict(found)

    async def aevaluate(
        self,
        text: str,
        task: Task | str,
        arch: str = "h100",
        workload: str | None = None,
        *,
        variant: str | None = None,
    ) -> Verdict:
        """Have `text` judged without blocking the event loop, on a thread of its own; a cancelled task lets go."""
        call = self._call(text, asked_for(task, variant), arch, workload)
        if isinstance(call, Verdict):
            return call
        try:
            return await asyncio.wrap_future(started(lambda: self._client.verdict(call), "ptxgym-http"))
        except asyncio.CancelledError:
            self._let_go(call)
            raise

    def _let_go(self, call: Call) -> None:
        """Tell the service that nobody waits any more, without waiting for that."""
        call.gone.set()
        telling = started(lambda: self._client.withdraw(call), "ptxgym-http")
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    def close(self) -> None:
        """Close the connections; the service has a moment to hear who has let go. See `Evaluator.close`."""
        futures.wait(list(self._telling), INTERRUPTED_S)
        super().close()

    def _forget_after_fork(self) -> None:
        super()._forget_after_fork()
        self._telling = set()

    def _call(self, text: str, task: Task, arch: str, workload: str | None) -> Call | Verdict:
        """Return what the service is to be asked, or the verdict on a text that cannot travel."""
        if not isinstance(text, str):
            raise UsageError(f"a submission is a str, not {type(text).__name__}")
        if self._closed:
            raise UsageError("the evaluator is closed; make a new one")
        load_arch(arch)
        if len(text.encode(errors="surrogatepass")) > MAX_SOURCE_BYTES or not _utf8(text):
            refused = check_text(text)
            assert refused is not None  # that it is too long, or no text
            return self.refuse(refused, text, task, arch)
        how = wanted()
        return Call(
            Asked(
                text=text,
                task=task.name,
                variant=task.variant,
                arch=arch,
                workload=workload,
                started=how.started,
                deadline_s=how.deadline_s,
                task_sha256=task_sha256(task),
                asker=uuid.uuid4().hex,
            )
        )


def _utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
