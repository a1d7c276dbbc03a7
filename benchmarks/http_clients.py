"""Five hundred clients of `ptxgym serve`, whose server is killed and started again: who is answered, and how often?

    python benchmarks/http_clients.py [--clients 500] [--each 4] [--kills 3]
    python benchmarks/http_clients.py --real [--clients 12] [--each 3] [--kills 1]

Every client is a thread with an evaluator of its own; the workers are scripted (`tests.cluster.stations`), so that the
server is what everybody waits for; with --real they build and emulate kernels, copies of the naive one of a variant of
GEMM, which needs nvcc and g++. A third of the requests are texts that others ask for too. Meanwhile the server gets
malformed and oversized bodies and wrong tokens, is killed (SIGKILL) and started again on the same port. At the end:
every client has every verdict, of its own text; no evaluation ran twice but those in hand at a kill; every bad request
got its status.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import os
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ptxgym.evaluator import Evaluator
from ptxgym.serve import client
from tests.cluster.stations import MAKER
from tests.serve.conftest import TOKEN, Killable
from tests.serve.served import LOGGED

WORKERS = 2
BAD = {
    "malformed": (b"{", f"Bearer {TOKEN}", 400),
    "unknown task": (b'{"text": "x", "task": "nosuch"}', f"Bearer {TOKEN}", 422),
    "oversized": (b"x" * (5 << 20), f"Bearer {TOKEN}", 413),
    "wrong token": (b'{"text": "x", "task": "gemm"}', "Bearer wrong", 401),
}


VARIANT = "k64"
"""Of GEMM, for real workers."""


@dataclass(frozen=True)
class Load:
    """What clients ask for."""

    each: int
    kernel: str = ""
    """In front of each text, for real workers."""

    def texts(self, who: int) -> list[str]:
        """Return the texts of a client: every third is one of ten that are asked for by all."""
        return [self._text(who, number) for number in range(self.each)]

    def _text(self, who: int, number: int) -> str:
        if number % 3 == 2:
            return f"{self.kernel}// sleep 0.005 shared {(who + number) % 10}"
        return f"{self.kernel}// ok {who} {number}"

    def ask(self, address: str, who: int, took_s: list[float]) -> None:
        """Be one client."""
        with Evaluator(address) as evaluator:
            for text in self.texts(who):
                began = time.monotonic()
                verdict = evaluator.evaluate(text, "gemm", variant=VARIANT if self.kernel else None)
                took_s.append(time.monotonic() - began)
                digest = hashlib.sha256(text.encode()).hexdigest()
                assert verdict.provenance.source_sha256 == digest and verdict.status == "ok", verdict


def disturb(address: str, done: threading.Event, seen: Counter[tuple[str, int]]) -> None:
    """Send what is to be refused, until the end."""
    while not done.wait(0.2):
        for name, (body, token, _) in BAD.items():
            connection = http.client.HTTPConnection(address.partition("//")[2], timeout=30)
            try:
                connection.request("POST", "/v1/evaluations", body, {"Authorization": token})
                seen[name, connection.getresponse().status] += 1
            except (OSError, http.client.HTTPException):  # killed meanwhile, or closed before all was sent
                seen[name, 0] += 1
            finally:
                connection.close()


def main() -> None:
    """Run, check and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="workers that build and emulate")
    parser.add_argument("--clients", type=int)
    parser.add_argument("--each", type=int)
    parser.add_argument("--kills", type=int)
    chosen = parser.parse_args()
    defaults = {"clients": 12, "each": 3, "kills": 1} if chosen.real else {"clients": 500, "each": 4, "kills": 3}
    for name, number in defaults.items():
        setattr(chosen, name, getattr(chosen, name) or number)
    load = Load(chosen.each, kernel() if chosen.real else "")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    # Who never met a server waits 10 s for it, as the address may be wrong; here it may start anew on a busy machine.
    client.FIRST_PATIENCE_S = client.PATIENCE_S
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "log").mkdir()
        os.environ |= {"PTXGYM_TOKEN": TOKEN, "PTXGYM_TEST_LOG": str(folder / "log")}
        server = Killable(folder, WORKERS, capacity=256, maker=LOGGED if chosen.real else MAKER)
        address = server.start()
        done, seen, took_s = threading.Event(), Counter[tuple[str, int]](), list[float]()
        began = time.monotonic()
        expected = sorted({text.splitlines()[-1] for who in range(chosen.clients) for text in load.texts(who)})
        try:
            with ThreadPoolExecutor(chosen.clients + 1) as threads:
                threads.submit(disturb, address, done, seen)
                asking = [threads.submit(load.ask, address, who, took_s) for who in range(chosen.clients)]
                for kill in range(chosen.kills):
                    while emulated(folder) < len(expected) * (kill + 1) // (chosen.kills + 1):
                        time.sleep(0.05)
                    server.kill()
                    server.start()
                failed = [error for one in asking if (error := one.exception()) is not None]
                wall_s = time.monotonic() - began
                done.set()
            until = time.monotonic() + 30  # what is answered is taken off the list a moment later
            while accepted(folder) and time.monotonic() < until:
                time.sleep(0.1)
        finally:
            done.set()
            server.kill()
        runs = Counter(
            line.split(" ", 2)[2]
            for line in (folder / "log/steps").read_text().splitlines()
            if line.startswith("emulate")
        )
        left = accepted(folder)
    twice = sum(runs.values()) - len(runs)
    print(f"{chosen.clients} clients, {len(took_s)} verdicts on {len(expected)} texts in {wall_s:.1f} s")
    print(f"server killed and restarted {chosen.kills} times; evaluations run again: {twice}")
    print(f"clients that failed: {len(failed)} {failed[:1]}; accepted and not answered: {left}")
    print(f"longest wait {max(took_s):.1f} s, median {sorted(took_s)[len(took_s) // 2]:.2f} s")
    for (bad, status), number in sorted(seen.items()):
        print(f"{bad}: {number} × {status or 'no answer (killed, or closed while sending)'}")
    assert not failed and len(took_s) == chosen.clients * chosen.each and sorted(runs) == expected and not left
    assert twice <= WORKERS * chosen.kills
    for bad, (_, _, right) in BAD.items():
        assert {status for name, status in seen if name == bad} <= {0, right, 503} and seen[bad, right]


def kernel() -> str:
    """Return the naive kernel."""
    from ptxgym.content import find

    return (find("tasks")["gemm"].parent / "solutions/h100/naive.cu").read_text(encoding="utf-8").rstrip() + "\n"


def accepted(folder: Path) -> int:
    """Return how many evaluations were accepted and are not answered."""
    return len(list((folder / "accepted").glob("*.json")))


def emulated(folder: Path) -> int:
    """Return how many evaluations were run so far."""
    path = folder / "log/steps"
    return path.read_text().count("emulate ") if path.exists() else 0


if __name__ == "__main__":
    main()
