"""The routes: token, limits, JSON in and out. Needs starlette."""

from __future__ import annotations

import asyncio
import hmac
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ptxgym.errors import AccessDenied, Overloaded, PtxgymError, UsageError
from ptxgym.serve.desk import Desk, log
from ptxgym.serve.openapi import document, page
from ptxgym.serve.wire import EVALUATIONS, MAX_WAIT_S, SERVICE, TOKEN_VARIABLE, Answer, Asked, Problem, problem

RETRY_AFTER_S = 1
BODY_LIMIT_S = 60.0
"""How long a body may take to come."""
DISCARD_BYTES, DISCARD_LIMIT_S = 64 << 20, 2.0
"""How much of a body that is too large is read, and for how long: a sender that is cut off never reads the answer."""
_KEY = re.compile(r"[0-9a-f]{64}\Z")

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Limits:
    """How much a server takes from its clients; how many evaluations it accepts is the service's capacity."""

    body_bytes: int = 4 << 20
    requests: int = 1024
    """At a time, those that wait for a verdict included."""


def make_app(desk: Desk, token: str, limits: Limits) -> Starlette:
    """Return the application."""
    routes = _Routes(desk, token.encode(), limits)
    guarded = routes.guarded
    return Starlette(
        routes=[
            Route(EVALUATIONS, guarded(routes.ask), methods=["POST"]),
            Route(EVALUATIONS + "/{key}", guarded(routes.wait), methods=["GET"]),
            Route(EVALUATIONS + "/{key}", guarded(routes.let_go), methods=["DELETE"]),
            Route(SERVICE, guarded(routes.about), methods=["GET"]),
            Route(f"{SERVICE}/status", guarded(routes.status), methods=["GET"]),
            Route("/healthz", _alive, methods=["GET"]),
            Route("/openapi.json", _document, methods=["GET"]),
            Route("/docs", _page, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _no_route},
    )


@dataclass
class _Routes:
    desk: Desk
    token: bytes
    limits: Limits
    going_on: int = field(default=0)
    """Requests in work."""

    def guarded(self, handler: Handler) -> Handler:
        """Return a handler behind the token and the limit, whose errors are JSON."""

        async def handle(request: Request) -> Response:
            self.going_on += 1
            try:
                self._check_token(request)
                if self.going_on > self.limits.requests:
                    raise Overloaded(f"the server has {self.limits.requests} requests in work; try again in a moment")
                return await handler(request)
            except _BadBody as error:
                return _told(error.status, Problem(type="UsageError", message=str(error)))
            except ClientDisconnect:
                return Response(status_code=400)  # nobody reads it
            except PtxgymError as error:
                return _told(*problem(error))
            except Exception as error:
                log.exception("a request came upon a fault")
                return _told(*problem(error))
            finally:
                self.going_on -= 1

        return handle

    async def ask(self, request: Request) -> Response:
        """Accept an evaluation, and wait a while for its verdict."""
        wait_s = _seconds(request)
        body = await _body(request, self.limits.body_bytes)
        try:
            asked = Asked.model_validate_json(body)
        except ValidationError as error:
            raise _BadBody(400, f"the body is no evaluation: {_first(error)}; /docs says what one is") from None
        answer = await self.desk.accept(asked)
        if answer.verdict is None and wait_s > 0:
            answer = await self.desk.answer(answer.key, wait_s) or answer
        return _answer(answer)

    async def wait(self, request: Request) -> Response:
        """Wait for a verdict."""
        key = request.path_params["key"]
        found = await self.desk.answer(key, _seconds(request)) if _KEY.match(key) else None
        return _unknown() if found is None else _answer(found)

    async def let_go(self, request: Request) -> Response:
        """Take an asker off an evaluation."""
        asker = request.query_params.get("asker", "")
        return Response(status_code=204) if await self.desk.let_go(request.path_params["key"], asker) else _unknown()

    async def about(self, request: Request) -> Response:
        """Say what the service is."""
        return _json(200, self.desk.about)

    async def status(self, request: Request) -> Response:
        """Say what the service is doing."""
        return _json(200, await self.desk.status())

    def _check_token(self, request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        good = hmac.compare_digest(given.strip().encode("latin-1", "replace"), self.token)
        if scheme.lower() != "bearer" or not good:
            raise AccessDenied(
                f"the service does not know this token: put its token into {TOKEN_VARIABLE}, or send it as "
                "`Authorization: Bearer …`"
            )


class _BadBody(Exception):
    """Raised for a body that is none."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def _body(request: Request, most_bytes: int) -> bytes:
    """Read a body, and keep no more of it than is accepted."""
    too_large = _BadBody(413, f"the body has more than {most_bytes:,} bytes, which is what is accepted")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_LIMIT_S) as limit:
            async for part in request.stream():
                if size <= most_bytes < size + len(part):
                    limit.reschedule(asyncio.get_running_loop().time() + DISCARD_LIMIT_S)
                    parts.clear()
                size += len(part)
                if size <= most_bytes:
                    parts.append(part)
                elif size > DISCARD_BYTES:
                    break
    except TimeoutError:
        if size <= most_bytes:
            raise _BadBody(408, f"the body did not come within {BODY_LIMIT_S:g} s") from None
    if size > most_bytes:
        raise too_large
    return b"".join(parts)


def _seconds(request: Request) -> float:
    text = request.query_params.get("wait_s", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_WAIT_S:
        raise UsageError(f"wait_s must be a number from 0 to {MAX_WAIT_S:g}, not {text[:50]!r}")
    return seconds


def _first(error: ValidationError) -> str:
    """Return where a body is wrong and how, without what it holds."""
    found = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in found["loc"])
    return f"{where[:100]}: {found['msg'][:300]}" if where else found["msg"][:300]


def _answer(answer: Answer) -> Response:
    return _json(202 if answer.verdict is None else 200, answer)


def _unknown() -> Response:
    return _told(404, Problem(type="UsageError", message="no such evaluation is known here: ask for it again"))


def _told(status: int, told: Problem) -> Response:
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not read
    return _json(status, told, headers)


def _json(status: int, body: BaseModel, headers: dict[str, str] | None = None) -> Response:
    return Response(body.model_dump_json(), status, headers, "application/json")


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:200]}: {error.detail}; /docs says what there is"
    return _told(error.status_code, Problem(type="UsageError", message=message))


async def _alive(request: Request) -> Response:
    return JSONResponse({"alive": True})


async def _document(request: Request) -> Response:
    return JSONResponse(document())


async def _page(request: Request) -> Response:
    return HTMLResponse(page())
