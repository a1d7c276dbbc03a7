"""https by a certificate of the server's, or by a proxy before it; and whoever takes one scheme for the other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.serve import client
from ptxgym.serve.server import Place
from ptxgym.verdict import Status
from tests.serve.conftest import TOKEN


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[trustme.CA, Path]:
    """A certificate authority, and the file of its certificate."""
    made, path = trustme.CA(), tmp_path_factory.mktemp("authority") / "ca.pem"
    made.cert_pem.write_to_path(path)
    return made, path


@pytest.fixture
def place(authority: tuple[trustme.CA, Path], tmp_path: Path) -> Place:
    """Where a server with a certificate for 127.0.0.1 listens."""
    issued = authority[0].issue_cert("127.0.0.1")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    return Place(port=0, grace_s=0, certificate=certificate, key=key)


def told(error: type[Exception], address: str, words: str) -> None:
    """Ask, and be told why not, without waiting for a server that may be starting."""
    began = time.monotonic()
    with Evaluator(address) as evaluator, pytest.raises(error, match=words):
        evaluator.evaluate("// ok", "gemm")
    assert time.monotonic() - began < client.FIRST_PATIENCE_S


def test_a_certificate_is_served_and_trusted_only_by_who_is_told_to(start, place, authority, monkeypatch):
    address, _, _ = start(place=place)
    assert address.startswith("https://")
    told(UsageError, address, r"certificate that is not trusted here: .*; SSL_CERT_FILE names")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority[1]))
    with Evaluator(address) as evaluator:
        assert evaluator.evaluate("// ok", "gemm").status is Status.OK
    told(UsageError, address.replace("127.0.0.1", "localhost"), "not trusted here: Hostname mismatch")


def test_certificate_and_key_may_stand_in_one_file(start, place, authority, monkeypatch, tmp_path):
    both = tmp_path / "both.pem"
    both.write_bytes(place.key.read_bytes() + place.certificate.read_bytes())
    address, _, _ = start(place=Place(port=0, grace_s=0, certificate=both))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority[1]))
    with Evaluator(address) as evaluator:
        assert evaluator.evaluate("// ok", "gemm").status is Status.OK


def test_who_takes_one_scheme_for_the_other_is_told_at_once_and_so_is_the_log(start, place, caplog):
    plain, _, _ = start()
    secure, _, _ = start(place=place, results=None, journal="secure")
    with caplog.at_level(logging.WARNING):
        told(UsageError, plain.replace("http:", "https:"), "does not speak https .*: write http:// instead")
        assert "a client speaks https, and this server http" in caplog.text
        assert "Invalid HTTP request" not in caplog.text
        told(UsageError, secure.replace("https:", "http:"), "speaks https: write https:// instead")
        assert "a client speaks http, and this server https" in caplog.text
    host, port = plain.partition("//")[2].split(":")
    with socket.create_connection((host, int(port)), timeout=30) as link:  # the same bytes within a request are a body
        link.sendall(f"POST /v1/evaluations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode())
        link.sendall(b"Content-Length: 4\r\n\r\n")
        time.sleep(0.2)
        link.sendall(b"\x16\x03\x01\x00")
        link.shutdown(socket.SHUT_WR)
        assert b"the body is no evaluation" in b"".join(iter(lambda: link.recv(4096), b""))


def test_what_hangs_up_speaks_neither_and_may_be_starting(log, monkeypatch):
    """The control: a server that ends while it is asked is asked again."""
    monkeypatch.setattr(client, "FIRST_PATIENCE_S", 0.5)
    with listening() as server:
        met = []

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    met.append(server.accept()[0].close())

        threading.Thread(target=hang_up, daemon=True).start()
        for scheme in ("http", "https"):
            with Evaluator(f"{scheme}://127.0.0.1:{server.getsockname()[1]}") as evaluator:
                before = len(met)
                with pytest.raises(InfrastructureError, match="no service of ptxgym answers"):
                    evaluator.evaluate("// ok", "gemm")
                assert len(met) > before + 1


def test_a_proxy_may_speak_https_for_a_server(start, place, authority, monkeypatch):
    plain, _, _ = start()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority[1]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place.certificate, place.key)
    host, port = plain.partition("//")[2].split(":")
    with proxy(context, host, int(port)) as address:
        with Evaluator(address) as evaluator:
            texts = [f"// ok {number}" for number in range(5)]
            assert [evaluator.evaluate(text, "gemm").message for text in texts] == texts
        told(UsageError, address.replace("https:", "http:"), "speaks https: write https:// instead")


@contextlib.contextmanager
def proxy(context: ssl.SSLContext, host: str, port: int) -> Iterator[str]:
    """Speak https on a loop of its own, and pass on in the clear what comes; yields the address."""

    opened: list[asyncio.StreamWriter] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        inner_reader, inner_writer = await asyncio.open_connection(host, port)
        opened.append(inner_writer)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(forward, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:  # `gather` of nothing asks for the current loop, which other tests of this process may have unset
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    for writer in opened:  # a client that keeps its connection is there still when all ends
        writer.transport.abort()
    loop.run_until_complete(asyncio.sleep(0.05))  # what was aborted is closed
    loop.close()


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    server = socket.create_server(("127.0.0.1", 0))
    try:
        yield server
    finally:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)  # ends `accept`
        server.close()
