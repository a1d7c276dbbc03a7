"""Requests to one server over HTTP/1.1, with the standard library alone; proxies of the environment are not used."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import threading
from collections.abc import Mapping
from urllib.parse import urlsplit

from ptxgym.errors import AccessDenied, UsageError
from ptxgym.serve.wire import TOKEN_VARIABLE

CONNECT_LIMIT_S = 10.0
ANSWER_BYTES = 64 << 20
IDLE = 32
"""Connections that are kept open."""
_HUNG_UP = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


def is_address(device: object) -> bool:
    """Whether a device is named by the address of a service."""
    return isinstance(device, str) and device.lower().startswith(("http://", "https://"))


def check_address(address: str) -> str:
    """Return an address without a slash at its end.

    Raises:
        UsageError: if it has no host, or holds what must not stand in an address; that is not quoted.
    """
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            f"the address of a service is http://host:port alone; a token belongs into {TOKEN_VARIABLE}, where no log "
            "shows it"
        )
    if not parts.hostname or port == 0 or not address.isprintable() or " " in address:
        raise UsageError("the address of a service is http://host:port or https://host:port; this one has another form")
    return address.rstrip("/")


class Connections:
    """Connections to one server; safe to share among threads, and after a fork."""

    def __init__(self, address: str) -> None:
        """Take the address of a server; nothing is connected yet."""
        self.address = check_address(address)
        parts = urlsplit(self.address)
        self._host, self._port, self._prefix = parts.hostname or "", parts.port, parts.path
        self._tls = ssl.create_default_context() if parts.scheme.lower() == "https" else None
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._owner = os.getpid()
        self._closed = False
        self._met = False
        """Whether the server has ever answered."""

    def exchange(self, method: str, path: str, body: bytes | None, limit_s: float) -> tuple[int, bytes]:
        """Send a request, and return status and body of the answer.

        Args:
            method: Of HTTP.
            path: Below the address.
            body: JSON.
            limit_s: How long to wait for each part of the answer.

        Raises:
            OSError: if the connection fails.
            http.client.HTTPException: if it breaks off.
            AccessDenied: if there is no token here that could be sent.
            UsageError: if http is spoken where https was asked for or the other way around, or the server's certificate
                is not trusted.
        """
        headers = {"Authorization": f"Bearer {_token()}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        while (idle := self._idle_one()) is not None:
            with contextlib.suppress(*_HUNG_UP):  # a server ends what is idle for long; asking again is free
                return self._exchanged(idle, method, path, body, headers, limit_s)
            self._drop_idle()
        return self._exchanged(self._fresh(), method, path, body, headers, limit_s)

    def _exchanged(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        limit_s: float,
    ) -> tuple[int, bytes]:
        try:
            if connection.sock is None:
                connection.timeout = min(CONNECT_LIMIT_S, limit_s)
                self._connect(connection)
            connection.sock.settimeout(limit_s)
            connection.request(method, self._prefix + path, body, headers)
            answer = connection.getresponse()
            data = answer.read(ANSWER_BYTES + 1)
            if len(data) > ANSWER_BYTES:
                raise http.client.HTTPException(f"an answer of more than {ANSWER_BYTES} bytes")
        except BaseException as error:
            connection.close()
            if isinstance(error, (ConnectionError, http.client.HTTPException)) and self._wants_tls():
                raise UsageError(f"the server at {self.address} speaks https: write https:// instead") from None
            raise
        self._met = True
        if answer.will_close:
            connection.close()
        else:
            self._keep(connection)
        return answer.status, data

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            raise UsageError(
                f"{self.address} has a certificate that is not trusted here: {error.verify_message}; SSL_CERT_FILE "
                "names a file of those that are"
            ) from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError):  # cut off, as by a server that ends
            raise
        except ssl.SSLError as error:
            why = (error.reason or str(error)).lower().replace("_", " ")
            raise UsageError(
                f"what answers at {self.address} does not speak https ({why}): write http:// instead, or start "
                "`ptxgym serve` with --certificate"
            ) from None

    def _wants_tls(self) -> bool:
        """Whether a server that has never answered over http would over https: such a one only hangs up."""
        if self._tls is not None or self._met:
            return False
        anyone = ssl.create_default_context()
        anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE  # nothing is sent
        with contextlib.suppress(OSError):
            where = self._host, self._port or 80
            with (
                socket.create_connection(where, CONNECT_LIMIT_S) as link,
                anyone.wrap_socket(link, server_hostname=self._host),
            ):
                return True
        return False

    def close(self) -> None:
        """Close what is idle, and what is still in use once it no longer is."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _idle_one(self) -> http.client.HTTPConnection | None:
        if self._owner != os.getpid():  # the parent's go on over the same sockets, and its lock may be held
            self._owner, self._idle, self._lock = os.getpid(), [], threading.Lock()
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _fresh(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port)
        return http.client.HTTPSConnection(self._host, self._port, context=self._tls)

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < IDLE and not self._closed:
                self._idle.append(connection)
                return
        connection.close()


def _token() -> str:
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise AccessDenied(f"the service wants its token: put it into {TOKEN_VARIABLE}")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise AccessDenied(f"{TOKEN_VARIABLE} holds no token: letters, digits and signs of ASCII without blanks")
    return token
