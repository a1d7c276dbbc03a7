"""Time of one step of an agent on the emulator: `python benchmarks/step.py`.

The oracle with an empty and with a filled build cache, the naive kernel with a filled one, and what importing ptxgym
adds to importing gymnasium. The emulator's own library is built beforehand.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import uuid

from ptxgym.evaluator import Evaluator
from ptxgym.task import load_task
from ptxgym.verdict import Verdict


def timed(evaluator: Evaluator, text: str) -> tuple[float, Verdict]:
    started = time.perf_counter()
    verdict = evaluator.evaluate(text, "gemm", "h100")
    return time.perf_counter() - started, verdict


def step(text: str, repeats: int) -> tuple[float, float, Verdict]:
    """Return seconds of the first evaluation of a text, and the best of later ones that find its build in the cache."""
    fresh = f"{text}\n// {uuid.uuid4()}\n"  # a text that no cache has seen
    with Evaluator() as evaluator:
        cold, verdict = timed(evaluator, fresh)
    again = []
    for _ in range(repeats):
        with Evaluator() as evaluator:  # without the memory of verdicts; the first call starts the workers
            evaluator.evaluate("", "gemm", "h100")
            again.append(timed(evaluator, fresh)[0])
    return cold, min(again), verdict


def import_seconds(statement: str, repeats: int) -> float:
    def once() -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        return time.perf_counter() - started

    return min(once() for _ in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description="Time one emulated step, and the import.")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    task = load_task("gemm")
    sources = {solution.file.rsplit("/", 1)[1]: task.source(solution) for solution in task.solutions["h100"]}
    with Evaluator() as evaluator:  # builds the native libraries
        evaluator.evaluate(sources["naive.cu"], task)
    print(f"{'step':<28}{'cold s':>9}{'cached s':>10}  verdict")
    for name in ("oracle.cu", "naive.cu"):
        cold, cached, verdict = step(sources[name], options.repeats)
        print(f"{name:<28}{cold:>9.2f}{cached:>10.2f}  {verdict.status.value} {verdict.score}")
        parts = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in verdict.measured.durations_s.items())
        print(f"{'  stages of the cold step':<28}{parts}")
    alone = import_seconds("import gymnasium", 5)
    both = import_seconds("import gymnasium, ptxgym", 5)
    print(f"{'import':<28}gymnasium {alone:.3f}, ptxgym beyond it {both - alone:.3f}")


if __name__ == "__main__":
    main()
