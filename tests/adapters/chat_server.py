"""A model's endpoint that answers by script: the n-th answer of a conversation is its script's n-th."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def scripted_endpoint(*scripts: Sequence[str]) -> Iterator[str]:
    """Serve chat completions, streamed or not, on a loopback port; yields the base address.

    Conversations get the scripts in the order in which they begin, and the last one from then on; each script begins
    otherwise.
    """
    opening = iter((*scripts[:-1], *[scripts[-1]] * 1000))

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *about: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            said = [_plain(message["content"]) for message in asked["messages"] if message["role"] == "assistant"]
            script = next(each for each in scripts if list(each[: len(said)]) == said) if said else next(opening)
            text = script[len(said)]
            streamed = bool(asked.get("stream"))
            body = (_stream(text) if streamed else json.dumps(_whole(text))).encode()
            self.send_response(200)
            self.send_header("content-type", "text/event-stream" if streamed else "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def _plain(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def _whole(text: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {
        "id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": _USAGE,
    }  # fmt: skip


def _stream(text: str) -> str:
    base = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    said = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
    chunks = [
        {**base, "choices": [said]},
        {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**base, "choices": [], "usage": _USAGE},
    ]
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
