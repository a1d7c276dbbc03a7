"""Clients that speak https where http is spoken, or the other way around, are told so, and so is the server's log."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from ptxgym.serve.desk import log
from ptxgym.serve.wire import Problem

if TYPE_CHECKING:
    from uvicorn import Config

_CLIENT_HELLO = b"\x16\x03"
"""A handshake record of TLS 1.x (RFC 8446, 5.1): how a client of https begins."""


def tell_other_scheme(config: Config) -> None:
    """Let a server, whose configuration is loaded, tell clients of the other scheme."""
    if config.ssl is not None:
        config.ssl.sslobject_class = _Handshake
        return
    spoken: Any = config.http_protocol_class

    class Plain(spoken):  # type: ignore[misc]
        """Speaks http."""

        begun = False

        def data_received(self, data: bytes) -> None:
            first, self.begun = not self.begun, True
            if not (first and data.startswith(_CLIENT_HELLO)):
                super().data_received(data)
                return
            log.warning(
                "a client speaks https, and this server http: it must write http:// in the address, or this server be "
                "started with --certificate"
            )
            told = Problem(type="UsageError", message="http is spoken here, not https").model_dump_json()
            # To a client of https this is a record of a wrong version, which ends the handshake at once.
            self.transport.write(
                f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(told)}\r\n"
                f"Connection: close\r\n\r\n{told}".encode()
            )
            self.transport.close()

    config.http_protocol_class = Plain


class _Handshake(ssl.SSLObject):
    """Speaks https, and notes where a client does not."""

    def do_handshake(self) -> None:
        """Shake hands."""
        try:
            super().do_handshake()
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST":
                log.warning("a client speaks http, and this server https: it must write https:// in the address")
            raise
