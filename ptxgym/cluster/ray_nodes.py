"""A Ray cluster as a driver finds it: the connection, whether its head is alive, and what its nodes have."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import ray
import ray.exceptions

from ptxgym.cluster.ray_metrics import NAMESPACE
from ptxgym.errors import InfrastructureError

PREFLIGHT_LIMIT_S = 8.0
"""For the cluster to say what it has."""
CONNECT_LIMIT_S = 5.0
LOOK_S = 2.0
"""How often the head is looked for."""
SILENCE_LIMIT_S = 20.0
"""After which the head is taken for dead. Ray itself ends every process that is connected to one after 60 s."""

_NO_ADDRESS = ("auto", "local")


def connect() -> bool:
    """Connect to the cluster that `RAY_ADDRESS` names or this machine belongs to, else start one of this machine alone.

    Returns:
        Whether a connection was made; False if there was one.

    Raises:
        InfrastructureError: if the cluster does not answer.
    """
    if ray.is_initialized():
        return False
    if (address := os.environ.get("RAY_ADDRESS", "")) and "://" not in address and address not in _NO_ADDRESS:
        check_reachable(address)
    try:
        ray.init(namespace=NAMESPACE, log_to_driver=False)
    except (ConnectionError, ray.exceptions.RayError, RuntimeError) as error:
        where = f"at {address}" if address else "on this machine"
        raise InfrastructureError(f"the Ray cluster {where} cannot be joined: {first_line(error)}") from error
    return True


def check_reachable(address: str) -> None:
    """Accept the address of a head that answers; Ray itself would try for minutes.

    Raises:
        InfrastructureError: if it does not.
    """
    if not _answers(address):
        raise InfrastructureError(
            f"no Ray head answers at {address}: start one there (`ray start --head`), or correct the address; "
            "`ray start` prints it"
        )


class Head:
    """Looks now and then whether the cluster's head is there, without Ray, whose calls wait for it for ever."""

    def __init__(self) -> None:
        self.address: str = ray.get_runtime_context().gcs_address
        self._heard_at = time.monotonic()
        self._ended = threading.Event()
        threading.Thread(target=self._look, name="ptxgym-ray-head", daemon=True).start()

    @property
    def silent_s(self) -> float:
        """How long ago it last answered."""
        return time.monotonic() - self._heard_at

    def close(self) -> None:
        """Look no more."""
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            if _answers(self.address):
                self._heard_at = time.monotonic()


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError, ValueError), socket.create_connection((host, int(port)), CONNECT_LIMIT_S):
        return True
    return False


def alive_nodes(limit_s: float = PREFLIGHT_LIMIT_S) -> list[Mapping[str, Any]]:
    """Return the cluster's nodes that are alive.

    Raises:
        InfrastructureError: if the cluster does not answer in time.
    """
    answer: Future[list[Mapping[str, Any]]] = Future()

    def ask() -> None:
        try:
            nodes: Any = ray.nodes  # untyped
            answer.set_result([node for node in nodes() if node["Alive"]])
        except Exception as error:  # such as that this process is no longer connected
            answer.set_exception(InfrastructureError(f"the Ray cluster does not say what it has: {first_line(error)}"))

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.result(limit_s)
    except TimeoutError as error:
        raise InfrastructureError(f"the Ray cluster did not answer within {limit_s:g} s; see `ray status`") from error


def resources(nodes: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Return what nodes have: `CPU`, `GPU`, `untyped` GPUs, `nodes`, and GPUs by accelerator."""
    total: Counter[str] = Counter(nodes=len(nodes))
    for node in nodes:
        has = node["Resources"]
        gpus = int(has.get("GPU", 0))
        names = [name.removeprefix("accelerator_type:") for name in has if name.startswith("accelerator_type:")]
        total.update({"CPU": int(has.get("CPU", 0)), "GPU": gpus, **dict.fromkeys(names or ["untyped"], gpus)})
    return total


def described(there: Mapping[str, int]) -> str:
    """Return what is there, in words."""
    names = [name for name in there if name not in ("CPU", "GPU", "nodes", "untyped") and there[name]]
    parts = [f"{there[name]} × {name}" for name in sorted(names)]
    if untyped := there.get("untyped"):
        parts.append(f"{untyped} GPU{'s' if untyped != 1 else ''} whose type Ray does not know")
    gpus = ", ".join(parts) or "no GPU"
    return f"{there['nodes']} node{'s' if there['nodes'] != 1 else ''}, {there['CPU']} CPU cores, {gpus}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
