"""`ptxgym serve`: the evaluation service over HTTP."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from ptxgym.cli.console import err, out, plain
from ptxgym.errors import InfrastructureError, UsageError

if TYPE_CHECKING:
    from ptxgym.serve.server import Ending

_FOLDER = Path("runs/serve")


def serve(
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
    backend: Annotated[
        str, typer.Option("--backend", help="local: this machine; ray: the cluster it is on.")
    ] = "local",
    device: Annotated[str, typer.Option("--device", help="auto, emulator or cuda.")] = "auto",
    tier: Annotated[str, typer.Option("--tier", help="How a GPU measures: rl, standard or publish.")] = "standard",
    epoch: Annotated[int, typer.Option("--epoch", min=0, help="Of the conditions.")] = 0,
    results: Annotated[
        Path, typer.Option("--results", metavar="DIR", help="Keeps verdicts, the secret of the draws, and the token.")
    ] = _FOLDER,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Else PTXGYM_TOKEN, else a token is drawn into --results."),
    ] = None,
    capacity: Annotated[
        int, typer.Option("--capacity", min=1, help="Evaluations that are accepted and not finished at a time.")
    ] = 512,
    requests: Annotated[
        int, typer.Option("--requests", min=1, help="Requests at a time, those that wait included.")
    ] = 1024,
    body_bytes: Annotated[int, typer.Option("--body-bytes", min=1024, help="The largest body.")] = 4 << 20,
    grace_s: Annotated[
        float, typer.Option("--grace", metavar="S", min=0, help="How long to go on after a signal to end.")
    ] = 30.0,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="PEM; then https is spoken.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Of the certificate, PEM.")] = None,
) -> None:
    """Evaluate for others over HTTP; they say --device http://host:port, with the token in PTXGYM_TOKEN."""
    from ptxgym.availability import check_tier
    from ptxgym.cluster import EvaluationService
    from ptxgym.serve.server import Place, check_installed
    from ptxgym.serve.server import serve as run

    check_installed()
    if backend not in ("local", "ray"):
        raise UsageError(f"--backend must be local or ray, not {backend!r}")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    token, where = _token(token_file, results)
    place = Place(host, port, certificate, key, grace_s)

    def told(address: str, ending: Ending) -> None:
        out.print(plain(f"ptxgym serves at {address}, and says at {address}/docs how to ask", "bold"))
        out.print(plain(f"the token: {where}; the secret of the draws has the hash {service.secret_hash}"))
        if certificate is None and not _loopback(host):
            err.print(
                plain("the token travels in the clear: give --certificate, or stay on a private network", "yellow")
            )

    with EvaluationService(
        cast('Literal["local", "ray"]', backend),
        device=device,
        tier=check_tier(tier),
        epoch=epoch,
        results=results,
        capacity=capacity,
    ).start() as service:
        run(service, results / "accepted", token, place, body_bytes=body_bytes, requests=requests, told=told)


def _token(file: Path | None, results: Path) -> tuple[str, str]:
    """Return the token and where it is; what evaluates does not inherit it."""
    from ptxgym.serve.wire import TOKEN_VARIABLE

    given = os.environ.pop(TOKEN_VARIABLE, "").strip()
    if file is None and given:
        return given, TOKEN_VARIABLE
    path = file or results / "token"
    try:
        if file is None:
            results.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "w", encoding="ascii") as fresh:
                    fresh.write(secrets.token_urlsafe(32) + "\n")
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InfrastructureError(f"the token cannot be kept in {path}: {error}") from error
    if not token:
        raise UsageError(f"{path} holds no token")
    return token, f"in {path}"


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
