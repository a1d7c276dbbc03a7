"""How fast are many environments over the service, compared with one evaluator that has one thread?

    python benchmarks/vector.py [--envs 64] [--texts 12] [--rounds 3] [--cores N] [--out FILE]

Needs nvcc and g++; no GPU. Three measurements on the first N cores (2 by default), each with a cache of builds of its
own, on copies of the naive kernel of PTX-Gemm-H100 that differ in a comment, so that each is compiled and judged anew:

- `one`: an `Evaluator` on one core, one text after the other;
- `distinct`: `gym.make_vec(num_envs=64)`, every environment another text;
- `repeated`: all environments the same new text, round by round.

Beside rates over time, which only a quiet machine tells, the CPU seconds that one evaluation takes (of all processes
that take part): what the service adds shows there on a busy machine, too.

Aims: `distinct` at least 0.9 × cores × `one`, `repeated` at least 20 × `one`; every environment gets the verdict on its
own text. Last, one evaluation is stopped for good: its environment is truncated at its deadline, and no other is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

ID = "PTX-Gemm-H100"
SECRET = "benchmark"
WEDGED_S = 20.0
"""Deadline of the round in which one evaluation is stopped for good."""
DOZEN = 12


def new_texts(count: int, first: int) -> list[str]:
    """Return copies of the naive kernel that no cache knows."""
    from ptxgym.content import find

    naive = (find("tasks")["gemm"].parent / "solutions" / "h100" / "naive.cu").read_text(encoding="utf-8")
    return [f"{naive}\n// copy {os.getpid()}-{first + number}\n" for number in range(count)]


def cpu_s(root: int) -> float:
    """Return the CPU seconds of a process and all that it started, those that have ended included."""
    parents, seconds = dict[int, int](), dict[int, float]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()  # proc_pid_stat(5): from field 3 on
            pid = int(path.parent.name)
            parents[pid], seconds[pid] = int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid, own in seconds.items():
        above: int | None = pid
        while above not in (root, None):
            above = parents.get(above)
        total += own if above == root else 0.0
    return total


def one(texts: list[str], cache: str, send: Callable[[tuple[float, float]], None]) -> None:
    """Evaluate texts one after the other on one core; runs in a process of its own."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from ptxgym.cache import Cache
    from ptxgym.evaluator import Evaluator

    with Evaluator("emulator", secret=SECRET, cache=Cache(cache)) as evaluator:
        evaluator.evaluate("no kernel", "gemm")
        evaluator.evaluate(new_texts(1, 10**6)[0], "gemm")  # references, emulator, page cache
        began, cpu = time.perf_counter(), cpu_s(os.getpid())
        for text in texts:
            evaluator.evaluate(text, "gemm")
        send((len(texts) / (time.perf_counter() - began), (cpu_s(os.getpid()) - cpu) / len(texts)))


def measured_one(count: int, folder: Path) -> tuple[float, float]:
    """Return evaluations per second of one evaluator with one thread, and CPU seconds per evaluation."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=one, args=(new_texts(count, 0), str(folder / "one"), send.send), daemon=False)
    process.start()
    found: tuple[float, float] = receive.recv()
    process.join()
    return found


class Envs:
    """Vector environments over a service with one worker per core."""

    def __init__(self, envs: int, cores: int, folder: Path) -> None:
        import gymnasium as gym

        import ptxgym  # noqa: F401  (registers the environments)
        from ptxgym.cache import Cache
        from ptxgym.cluster import EvaluationService, Fleet

        self.service = EvaluationService(fleet=Fleet(cpu=cores), secret=SECRET, cache=Cache(folder / "envs"))
        self.envs = gym.make_vec(ID, num_envs=envs, turns=1000, evaluator=self.service)
        self.envs.reset(seed=0)
        self.step(new_texts(cores, 2 * 10**6) * (envs // cores))

    def step(self, texts: list[str]) -> tuple[float, float]:
        """Judge one text per environment; return rate and CPU seconds per text, after a look at every answer."""
        began, cpu = time.perf_counter(), cpu_s(os.getpid())
        observations, _, _, truncated, infos = self.envs.step(texts)
        rate = len(texts) / (time.perf_counter() - began)
        each_s = (cpu_s(os.getpid()) - cpu) / len(texts)
        assert observations["source"] == tuple(texts) and not truncated.any()
        sources = [verdict.provenance.source_sha256 for verdict in infos["verdict"]]
        from ptxgym.submission import Submission

        assert sources == [Submission(text).sha256 for text in texts]
        return rate, each_s

    def wedge(self) -> tuple[int, float]:
        """Stop the worker of one evaluation for good; return how many environments were truncated, and the seconds.

        The others ask for texts that are no kernels, a dozen in all: the worker that is left has time for so many.
        """
        from ptxgym.cluster import Request

        envs = self.envs.unwrapped.envs
        (wedged,) = new_texts(1, 3 * 10**6)
        ticket = self.service.submit(Request(text=wedged, task="gemm"))
        while not (busy := [worker for worker in self.service.status().workers if worker.running]):
            time.sleep(0.05)
        os.kill(busy[0].pid, signal.SIGSTOP)
        for env in envs:
            env._deadline_s = WEDGED_S
        began = time.perf_counter()
        texts = [wedged, *(f"// no kernel {number % DOZEN}" for number in range(len(envs) - 1))]
        _, _, _, truncated, infos = self.envs.step(texts)
        ticket.cancel()
        assert [verdict is None for verdict in infos["verdict"]] == list(truncated)
        return int(truncated.sum()), time.perf_counter() - began

    def close(self) -> None:
        """End the workers."""
        self.envs.close()
        self.service.close()


def main() -> int:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--texts", type=int, default=12, help="that the one evaluator judges")
    parser.add_argument("--rounds", type=int, default=3, help="of repeated texts")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: chosen.cores]))
    with tempfile.TemporaryDirectory() as folder:
        rate, one_cpu_s = measured_one(chosen.texts, Path(folder))
        envs = Envs(chosen.envs, chosen.cores, Path(folder))
        distinct, distinct_cpu_s = envs.step(new_texts(chosen.envs, 4 * 10**6))
        rounds = [envs.step(new_texts(1, 5 * 10**6 + number) * chosen.envs) for number in range(chosen.rounds)]
        repeated = chosen.rounds / sum(1 / one_round for one_round, _ in rounds)
        repeated_cpu_s = sum(each_s for _, each_s in rounds) / chosen.rounds
        truncated, wedged_s = envs.wedge()
        envs.close()
    found: dict[str, Any] = {
        "cores": chosen.cores,
        "envs": chosen.envs,
        "one_per_s": rate,
        "distinct_per_s": distinct,
        "repeated_per_s": repeated,
        "distinct_over_cores_times_one": distinct / (chosen.cores * rate),
        "repeated_over_one": repeated / rate,
        "one_cpu_s": one_cpu_s,
        "distinct_cpu_s": distinct_cpu_s,
        "repeated_cpu_s": repeated_cpu_s,
        "distinct_cpu_ratio": one_cpu_s / distinct_cpu_s,
        "repeated_cpu_ratio": one_cpu_s / repeated_cpu_s,
        "truncated_of_one_wedged": truncated,
        "step_with_one_wedged_s": wedged_s,
        "load_average": os.getloadavg(),
    }
    print(json.dumps(found, indent=2))
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    good = found["distinct_over_cores_times_one"] >= 0.9 and found["repeated_over_one"] >= 20 and truncated == 1
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
