"""Five hundred clients of `ptxgym serve`, whose server is killed and started again: who is answered, and how often?

    python benchmarks/http_clients.py [--clients 500] [--each 4] [--kills 3]

Every client is a thread with an evaluator of its own; the workers are scripted (`tests.cluster.stations`), so that the
server is what everybody waits for. A third of the requests are texts that others ask for too. Meanwhile the server gets
malformed and oversized bodies and wrong tokens, is killed (SIGKILL) and started again on the same port. At the end:
every client has every verdict, of its own text; no evaluation ran twice but those in hand at a kill; every bad request
got its status.
"""

from __future__ import annotations

import argparse
import http.client
import os
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ptxgym.evaluator import Evaluator
from tests.serve.conftest import TOKEN, Killable

WORKERS = 2
BAD = {
    "malformed": (b"{", f"Bearer {TOKEN}", 400),
    "unknown task": (b'{"text": "x", "task": "nosuch"}', f"Bearer {TOKEN}", 422),
    "oversized": (b"x" * (5 << 20), f"Bearer {TOKEN}", 413),
    "wrong token": (b'{"text": "x", "task": "gemm"}', "Bearer wrong", 401),
}


def texts(client: int, each: int) -> list[str]:
    """Return what a client asks for: every third text is one of ten that are asked for by all."""
    return [f"// sleep 0.005 shared {(client + n) % 10}" if n % 3 == 2 else f"// ok {client} {n}" for n in range(each)]


def ask(address: str, client: int, each: int, took_s: list[float]) -> None:
    """Be one client."""
    with Evaluator(address) as evaluator:
        for text in texts(client, each):
            began = time.monotonic()
            verdict = evaluator.evaluate(text, "gemm")
            took_s.append(time.monotonic() - began)
            assert verdict.message == text, (verdict.message, text)


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
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--kills", type=int, default=3)
    chosen = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "log").mkdir()
        os.environ |= {"PTXGYM_TOKEN": TOKEN, "PTXGYM_TEST_LOG": str(folder / "log")}
        server = Killable(folder, WORKERS, capacity=256)
        address = server.start()
        done, seen, took_s = threading.Event(), Counter[tuple[str, int]](), list[float]()
        began = time.monotonic()
        expected = sorted({text for client in range(chosen.clients) for text in texts(client, chosen.each)})
        try:
            with ThreadPoolExecutor(chosen.clients + 1) as threads:
                threads.submit(disturb, address, done, seen)
                asking = [threads.submit(ask, address, client, chosen.each, took_s) for client in range(chosen.clients)]
                for kill in range(chosen.kills):
                    while emulated(folder) < len(expected) * (kill + 1) // (chosen.kills + 1):
                        time.sleep(0.05)
                    server.kill()
                    server.start()
                failed = [error for one in asking if (error := one.exception()) is not None]
                wall_s = time.monotonic() - began
                done.set()
        finally:
            done.set()
            server.kill()
        runs = Counter(
            line.split(" ", 2)[2]
            for line in (folder / "log/steps").read_text().splitlines()
            if line.startswith("emulate")
        )
        left = len(list((folder / "accepted").glob("*.json")))
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


def emulated(folder: Path) -> int:
    """Return how many evaluations were run so far."""
    path = folder / "log/steps"
    return path.read_text().count("emulate ") if path.exists() else 0


if __name__ == "__main__":
    main()
