"""Questions to one service over HTTP, asked again where they must be; neither Ray nor torch nor a compiler is needed.

Whatever happens on the way, asking again is free: a request is named by its content, and the service evaluates it once.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import ValidationError

from ptxgym.errors import DeadlineExceeded, InfrastructureError, Overloaded, UsageError
from ptxgym.serve.connection import Connections
from ptxgym.serve.wire import EVALUATIONS, SERVICE, About, Answer, Asked, Problem, error_of
from ptxgym.verdict import Value, Verdict

PATIENCE_S = 120.0
"""How long a service that does not answer is asked again, before the evaluation's deadline; a restart may take that."""
FIRST_PATIENCE_S = 10.0
"""The same before it has ever answered, as the address may be wrong, and once it has been waited for in vain."""
FIRST_POLL_S = 1.0
"""How long a request to accept is held open: only then does it have a key by which to let go."""
POLL_S = 20.0
SLACK_S = 30.0
"""How much longer than it was asked to a server may take to answer."""
PAUSE_S = 0.2
PAUSE_MOST_S = 5.0
INTERRUPTED_S = 2.0
"""How long whoever is interrupted, as by Ctrl-C, tries to tell the service."""

Body = TypeVar("Body", bound=Value)


@dataclass
class Call:
    """An evaluation that somebody waits for."""

    asked: Asked
    gone: threading.Event = field(default_factory=threading.Event)
    """Set where nobody waits any more."""
    key: str | None = None
    """Once the service has accepted it."""


class Withdrawn(Exception):
    """Raised where nobody waits any more."""


class Client:
    """Asks a service; safe to share among threads, and after a fork."""

    def __init__(self, address: str, *, tier: str = "standard", epoch: int = 0) -> None:
        """Take the address of a service; it is not asked yet.

        Args:
            address: `http://host:port`, or https.
            tier: That the service must have, unless it is `standard`.
            epoch: That it must have to judge.

        Raises:
            UsageError: if the address has another form.
        """
        self._connections = Connections(address)
        self._tier, self._epoch = tier, epoch
        self._about: About | None = None
        self._silent = False
        """Whether it has been waited for in vain, and not answered since."""

    @property
    def where(self) -> str:
        """The address."""
        return self._connections.address

    def about(self) -> About:
        """Return what the service says of itself; it is asked once.

        Raises:
            InfrastructureError: if it does not answer.
            AccessDenied: if it does not know the token.
            UsageError: if it is not what was asked for.
        """
        if self._about is None:
            until = time.monotonic() + PATIENCE_S
            found = self._asked("GET", SERVICE, None, About, until, threading.Event())
            if found is None:
                raise UsageError(f"{self.where} is no evaluation service of ptxgym")
            if self._tier not in ("standard", found.tier):
                raise UsageError(f"{self.where} measures with tier {found.tier!r}, not {self._tier!r}; leave it out")
            self._about = found
        return self._about

    def check_epoch(self) -> None:
        """Accept the epoch whose conditions the service judges under; raises as `about`."""
        if self._epoch != (found := self.about().epoch):
            raise UsageError(
                f"{self.where} judges epoch {found}, not {self._epoch}: start it again with --epoch {self._epoch}, and "
                "with the same --results so that it draws from the same secret"
            )

    def verdict(self, call: Call) -> Verdict:
        """Ask until there is a verdict.

        Raises:
            DeadlineExceeded: if there is none by the deadline.
            InfrastructureError: if the service does not answer, or its machines failed.
            UsageError: if it cannot serve the request.
            Withdrawn: if nobody waits any more; the service is told.
        """
        try:
            return self._waited(call)
        except Exception as error:
            if isinstance(error, Withdrawn):
                self.withdraw(call)
            raise
        except BaseException:
            self.withdraw(call, INTERRUPTED_S)
            raise

    def withdraw(self, call: Call, limit_s: float = PATIENCE_S) -> None:
        """Tell the service that nobody waits here, again where it does not hear that: it may be starting anew.

        What it never hears of ends by the deadline. One that has not said yet under which key it accepted cannot be
        told: whoever still asks it does so once it has.
        """
        if call.key is None:
            return
        path = f"{EVALUATIONS}/{call.key}?asker={call.asked.asker}"
        until, pause_s = time.monotonic() + min(limit_s, call.asked.deadline_s or limit_s), PAUSE_S
        while (left_s := until - time.monotonic()) > 0:
            try:
                status, _ = self._connections.exchange("DELETE", path, None, min(5.0, left_s))
            except (OSError, http.client.HTTPException):
                status = 503
            if status < 500:  # it has let go, or knows nothing of it
                return
            time.sleep(min(pause_s, max(until - time.monotonic(), 0.0)))
            pause_s = min(2 * pause_s, PAUSE_MOST_S)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def _waited(self, call: Call) -> Verdict:
        self.check_epoch()
        about, asked, gone = self.about(), call.asked, call.gone
        limit_s = asked.deadline_s or about.deadline_s
        until = time.monotonic() + limit_s
        while (left_s := until - time.monotonic()) > 0:
            if call.key is None:
                path = f"{EVALUATIONS}?wait_s={min(FIRST_POLL_S, left_s):.3f}"
                body = asked.model_copy(update={"deadline_s": left_s}).model_dump_json().encode()
                answer = self._asked("POST", path, body, Answer, until, gone)
            else:
                path = f"{EVALUATIONS}/{call.key}?wait_s={min(POLL_S, left_s):.3f}"
                answer = self._asked("GET", path, None, Answer, until, gone)
            if answer is None:  # the service has forgotten it: it is asked for again
                call.key = None
                gone.wait(PAUSE_S)
                continue
            if answer.conditions != about.conditions:
                raise UsageError(
                    f"{self.where} judges under other conditions than before ({answer.conditions} instead of "
                    f"{about.conditions}): start it with the same --results, or make a new evaluator"
                )
            if answer.verdict is not None:
                return answer.verdict
            if call.key is not None:
                gone.wait(PAUSE_S)  # a service that ends answers at once
            call.key = answer.key
        # The service has the same deadline, and needs not be told.
        raise DeadlineExceeded(
            f"no verdict from {self.where} within {limit_s:g} s; nothing is said about the submission"
        )

    def _asked(
        self, method: str, path: str, body: bytes | None, model: type[Body], until: float, gone: threading.Event
    ) -> Body | None:
        """Send a request until it is answered; None where what it is about is not known."""
        began, pause_s = time.monotonic(), PAUSE_S
        patience_s = FIRST_PATIENCE_S if self._about is None or self._silent else PATIENCE_S
        while True:
            if gone.is_set():
                raise Withdrawn
            now = time.monotonic()
            try:
                status, data = self._connections.exchange(
                    method, path, body, max(0.1, min(POLL_S + SLACK_S, until - now + SLACK_S))
                )
                found = _read(status, data, model)
            except (OSError, http.client.HTTPException, _NotOurs) as error:
                found = InfrastructureError(f"no service of ptxgym answers at {self.where}: {_words(error)}")
                give_up = min(until, began + patience_s)
                self._silent = self._silent or time.monotonic() + pause_s > began + patience_s
            else:
                self._silent = False
                if not isinstance(found, Overloaded):
                    if isinstance(found, Exception):
                        raise found
                    return found
                give_up = until
            if time.monotonic() + pause_s > give_up:
                raise found from None
            gone.wait(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, PAUSE_MOST_S)


class _NotOurs(Exception):
    """Raised for an answer that no service of ptxgym gives: that of a proxy before it, say."""


def _read(status: int, data: bytes, model: type[Body]) -> Body | Exception | None:
    """Return what an answer holds: a body, an error that was told, or None for what is not known."""
    try:
        if status in (200, 202):
            return model.model_validate_json(data)
        told = Problem.model_validate_json(data)
    except ValidationError:
        raise _NotOurs(f"what does answer (status {status}) is something else, or of another version") from None
    return None if status == 404 else error_of(told, "the service")


def _words(error: Exception) -> str:
    said = getattr(error, "strerror", None) or str(error)
    return said or type(error).__name__
