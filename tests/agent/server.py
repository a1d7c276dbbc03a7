"""An OpenAI-compatible endpoint that says what its script says: chat completions over HTTP, streamed or whole.

    with ScriptedServer([Fail(429, headers={"Retry-After": "0"}), Say("hello")]) as server:
        load_agent("openai", base_url=server.url, …)

A script is a sequence, of which each request takes the next item, or a function of the request's body. An item is `Say`
(a completion), `Fail` (an HTTP error), `Cut` (a connection that ends too early), or `Raw` (any other 200).
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self


@dataclass(frozen=True)
class Say:
    """A completion."""

    text: str
    reasoning: str = ""
    reasoning_field: str = "reasoning_content"
    refusal: str = ""
    finish_reason: str | None = "stop"
    usage: Mapping[str, Any] | None = None
    """By default a token for every four characters."""
    tells_usage: bool = True
    model: str = "scripted-1"
    piece: int = 400
    """Characters in each chunk of a stream."""
    delay_s: float = 0.0
    """Before each chunk."""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Fail:
    """An HTTP error."""

    status: int
    message: str = "scripted failure"
    code: str | None = None
    type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cut:
    """A connection that ends too early."""

    text: str = ""
    """Of which all but the end is sent."""
    how: Literal["before", "within", "silent", "error"] = "within"
    """`before` any answer; `within` a chunked stream; `silent`: the stream ends well, but without a finish reason;
    `error`: the stream ends with an error in it."""


@dataclass(frozen=True)
class Raw:
    """Any other answer with status 200."""

    body: bytes
    content_type: str = "text/html"


Item = Say | Fail | Cut | Raw
Script = Sequence[Item] | Callable[[dict[str, Any]], Item]


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    path: str
    headers: Mapping[str, str]
    """By lower-case name."""
    body: dict[str, Any]
    at_s: float
    """Monotonic."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation."""
        found: list[dict[str, str]] = self.body["messages"]
        return found


class ScriptedServer:
    """Serves on a free port of the loopback interface, from `with` to its end."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._lock = threading.Lock()
        self.requests: list[Request] = []
        self.most_at_once = 0
        self._now = 0

    @property
    def url(self) -> str:
        """What clients take as `base_url`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def next(self, request: Request) -> Item:
        """Take down a request and return what it is answered with."""
        with self._lock:
            self.requests.append(request)
            if callable(self._script):
                return self._script(request.body)
            number = len(self.requests) - 1
            if number >= len(self._script):
                return Fail(418, f"the script has {len(self._script)} items, none for request {number + 1}")
            return self._script[number]

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Count how many requests are answered at once."""
        with self._lock:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            yield
        finally:
            with self._lock:
                self._now -= 1


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    owner: ScriptedServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.owner.busy():
            if self.path != "/v1/chat/completions":
                self._fail(Fail(404, f"no such path: {self.path}"))
                return
            item = self.owner.next(Request(self.path, headers, body, time.monotonic()))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client may have given up
                self._answer(item, body)

    def _answer(self, item: Item, body: dict[str, Any]) -> None:
        if isinstance(item, Fail):
            self._fail(item)
        elif isinstance(item, Raw):
            self._whole(200, item.body, item.content_type)
        elif isinstance(item, Cut):
            self._cut(item)
        elif body.get("stream"):
            self._stream(item, body)
        else:
            time.sleep(item.delay_s)
            self._whole(200, json.dumps(_completion(item, body)).encode(), "application/json")

    def _fail(self, item: Fail) -> None:
        error = {"error": {"message": item.message, "code": item.code, "type": item.type}}
        self._whole(item.status, json.dumps(error).encode(), "application/json", item.headers)

    def _whole(self, status: int, body: bytes, content_type: str, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Type": content_type, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, item: Say, body: dict[str, Any]) -> None:
        self._begin_stream()
        for chunk in _chunks(item, body):
            time.sleep(item.delay_s)
            self._event(json.dumps(chunk))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _cut(self, item: Cut) -> None:
        if item.how != "before":
            self._begin_stream()
            for chunk in _chunks(Say(item.text, finish_reason=None, tells_usage=False), {}):
                self._event(json.dumps(chunk))
        if item.how == "error":
            self._event(json.dumps({"error": {"message": "the engine died", "code": 500}}))
        if item.how in ("silent", "error"):
            self.wfile.write(b"0\r\n\r\n")
            return
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, data: str) -> None:
        raw = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _completion(item: Say, body: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": item.text or None}
    if item.reasoning:
        message[item.reasoning_field] = item.reasoning
    if item.refusal:
        message["refusal"] = item.refusal
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": item.finish_reason}
    return {
        **_head(item, "chat.completion"),
        "choices": [{**choice, **_trace(item, body)}],
        **({"usage": _usage(item, body)} if item.tells_usage else {}),
        **({"prompt_token_ids": [7, 8]} if body.get("return_token_ids") else {}),
    }


def _chunks(item: Say, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    head = _head(item, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason, **more}]}

    first = {"prompt_token_ids": [7, 8]} if body.get("return_token_ids") else {}
    yield {**chunk({"role": "assistant", "content": ""}), **first}
    for name, text in ((item.reasoning_field, item.reasoning), ("refusal", item.refusal), ("content", item.text)):
        for start in range(0, len(text), item.piece):
            yield chunk({name: text[start : start + item.piece]})
    if item.finish_reason is not None:
        yield chunk({}, item.finish_reason, **_trace(item, body))
    if item.tells_usage and (body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": _usage(item, body)}


def _head(item: Say, kind: str) -> dict[str, Any]:
    return {"id": "scripted", "object": kind, "created": 1, "model": item.model}


def _trace(item: Say, body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if body.get("logprobs"):
        tokens = [{"token": "x", "logprob": value, "bytes": None, "top_logprobs": []} for value in item.logprobs]
        found["logprobs"] = {"content": tokens, "refusal": None}
    if body.get("return_token_ids"):
        found["token_ids"] = list(item.token_ids)
    return found


def _usage(item: Say, body: dict[str, Any]) -> dict[str, Any]:
    prompt = sum(len(message["content"]) for message in body["messages"]) // 4
    completion = len(item.text + item.reasoning + item.refusal) // 4
    counted = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**counted, **(item.usage or {})}
