"""A server from its socket to its end: signals, draining, and the limits of the process. Needs uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.extras import need
from ptxgym.serve.desk import Desk, Served
from ptxgym.serve.journal import Journal
from ptxgym.serve.scheme import tell_other_scheme

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""How long an idle connection is kept: clients pause while they think, and a new one costs round trips."""
GRACE_S = 30.0
LINGER_S = 1.5
"""How long a server that ends is still there after its last verdict: a client may be between two questions."""


@dataclass(frozen=True)
class Place:
    """Where a server listens, and how it ends."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one."""
    certificate: Path | None = None
    """With its private key in the file, or in `key`; then the server speaks https."""
    key: Path | None = None
    grace_s: float = GRACE_S
    """How long evaluations may go on after the signal to end; what is left then goes on after the next start."""


class Ending:
    """How a server is told to end, from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self.soon, self.now = asyncio.Event(), asyncio.Event()

    def attach(self) -> None:
        """Belong to the running loop."""
        self._loop = asyncio.get_running_loop()

    def ask(self) -> None:
        """End once what was accepted is answered; asked again, end now."""
        assert self._loop is not None  # attached before anybody learns of it
        self._loop.call_soon_threadsafe(self._ask)

    def _ask(self) -> None:
        (self.now if self.soon.is_set() else self.soon).set()


def check_installed() -> None:
    """Accept that what a server needs is installed.

    Raises:
        UsageError: if it is not.
    """
    for module in ("starlette", "uvicorn"):
        need(module, "a server needs", "serve")


def serve(
    service: Served,
    journal: Path,
    token: str,
    place: Place = Place(),
    *,
    body_bytes: int | None = None,
    requests: int | None = None,
    told: Callable[[str, Ending], None] = lambda address, ending: None,
) -> None:
    """Serve until a signal (SIGINT, SIGTERM) or `Ending.ask`; the service is not closed.

    Args:
        service: Evaluates.
        journal: Folder for what is accepted and not answered.
        token: That clients must send.
        place: Where to listen.
        body_bytes: The largest body that is accepted.
        requests: How many may be in work at a time, those that wait included.
        told: Takes the address once it can be asked, and what ends the server.

    Raises:
        UsageError: if a package is missing, the address or the journal cannot be had, or no worker can ever serve.
        InfrastructureError: if the journal cannot be kept.
    """
    check_installed()
    from ptxgym.serve.app import Limits, make_app

    if not token:
        raise UsageError("the token is empty, so that anyone could ask")
    given = {"body_bytes": body_bytes, "requests": requests}
    limits = Limits(**{name: value for name, value in given.items() if value is not None})
    _more_files(limits.requests + 256)
    with _bound(place) as listening:
        kept = Journal(journal)
        desk = Desk(service, kept)
        try:
            asyncio.run(_serve(make_app(desk, token, limits), desk, listening, place, told))
        finally:
            desk.close()
            kept.close()


async def _serve(
    app: object, desk: Desk, listening: socket.socket, place: Place, told: Callable[[str, Ending], None]
) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # they are ours

    ending = Ending()
    ending.attach()
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=KEEP_ALIVE_S,
        backlog=BACKLOG,
        ssl_certfile=place.certificate,
        ssl_keyfile=place.key,
    )
    try:
        config.load()
    except OSError as error:
        raise UsageError(f"certificate or key cannot be used: {error.strerror or error}") from error
    tell_other_scheme(config)
    server = Server(config)
    scheme = "http" if place.certificate is None else "https"
    host = f"[{place.host}]" if ":" in place.host else place.host
    with _signals(ending):
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        told(f"{scheme}://{host}:{listening.getsockname()[1]}", ending)
        beginning = asyncio.create_task(desk.begin())
        stop = asyncio.create_task(ending.soon.wait())
        await asyncio.wait({serving, stop, beginning}, return_when=asyncio.FIRST_COMPLETED)
        if beginning.done() and beginning.exception() is None:
            await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
        else:
            beginning.cancel()
        await _drain(desk, ending, place.grace_s)
        stop.cancel()
        server.should_exit = True
        await serving
    if beginning.done() and not beginning.cancelled():
        beginning.result()  # raises what kept the desk from beginning


async def _drain(desk: Desk, ending: Ending, grace_s: float) -> None:
    """Accept nothing more; wait for what was accepted; then send everybody home."""
    desk.leave()
    idle, now = asyncio.create_task(desk.idle()), asyncio.create_task(ending.now.wait())
    await asyncio.wait({idle, now}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    if idle.done():
        await asyncio.wait({now}, timeout=min(LINGER_S, grace_s))
    idle.cancel()
    now.cancel()
    desk.left.set()


@contextlib.contextmanager
def _signals(ending: Ending) -> Iterator[None]:
    """End by SIGINT and SIGTERM, where this is the main thread."""
    mine = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    loop = asyncio.get_running_loop()
    for number in mine:
        loop.add_signal_handler(number, ending.ask)
    try:
        yield
    finally:
        for number in mine:
            loop.remove_signal_handler(number)


def _bound(place: Place) -> socket.socket:
    try:
        family = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((place.host, place.port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{place.host} port {place.port} cannot be listened on: {what}; choose another") from error
    listening.setblocking(False)
    return listening


def _more_files(needed: int) -> None:
    """Let the process have a connection per request that it allows.

    Raises:
        InfrastructureError: if the system does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise InfrastructureError(
                f"{needed} files must be open at a time, and the system allows {hard}: raise `ulimit -n`, or allow "
                "fewer requests"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
