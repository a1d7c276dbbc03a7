"""Time of each stage of judging: `python benchmarks/judge.py [--device cupy] [--workload hardware]`.

numpy on the `emulation` workload by default; with cupy, on a GPU, the `hardware` workload. Each stage is shown in
milliseconds: the first time, and the best of the following ones.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ptxgym.device.protocol import Bytes
from ptxgym.judge import conditions as conditioning
from ptxgym.judge import correctness, numbers, references
from ptxgym.judge.explain import explain
from ptxgym.judge.pattern import pattern
from ptxgym.judge.references import Expected, ExpectedOutput
from ptxgym.judge.rehearsal import rehearse
from ptxgym.task import Task, load_task

SECRET = b"a benchmark, not a run"


def stage(name: str, xp: Any, work: Callable[[], Any], repeats: int = 5) -> Any:
    """Print how long `work` takes, and return what it gave."""
    seconds = []
    for _ in range(1 + repeats):
        started = time.perf_counter()
        result = work()
        if xp is not np:
            xp.cuda.Device().synchronize()
        seconds.append(time.perf_counter() - started)
    later = f"{min(seconds[1:]) * 1e3:>10.2f}" if repeats else f"{'':>10}"
    print(f"  {name:<34}{seconds[0] * 1e3:>10.2f}{later}")
    return result


def wrong_outputs(output: ExpectedOutput) -> dict[str, Bytes]:
    """Return outputs that are wrong in ways that take different hypotheses."""
    ideal = output.ideal
    xp = numbers.namespace(ideal)
    tile = (..., slice(64, 128), slice(64, 128))
    stale, lost, nan = ideal.copy(), ideal.copy(), ideal.copy()
    stale[tile] = ideal[..., :64, :64]
    lost[tile] = 0.0
    nan[tile] = xp.nan
    noisy = ideal + 0.1 * float(ideal.std()) * xp.random.default_rng(0).standard_normal(ideal.shape)
    values = {"scaled": 1.01 * output.values, "stale tile": stale, "zero tile": lost, "NaN tile": nan, "noise": noisy}
    encoded = {name: numbers.encode(array.astype(np.float32), output.tensor.dtype) for name, array in values.items()}
    encoded["unwritten"] = xp.asarray(numbers.poisoned(output.tensor, output.axes))
    return encoded


def time_case(task: Task, case: conditioning.Case, xp: Any) -> None:
    """Print every stage of one case."""
    print(f"{case.name} {dict(case.axes)}")
    drawn = stage("inputs, drawn on the host", xp, lambda: conditioning.inputs(task, case, xp), 1)
    expected: Expected = stage("reference and budgets", xp, lambda: references.compute(task, case, drawn, xp), 1)
    print(f"  {'kept':<34}{expected.nbytes / 2**20:>10.1f} MiB")
    output = next(iter(expected.outputs.values()))
    right = output.ideal_data.copy()
    after = {name: data.copy() for name, data in expected.inputs.items()}
    stage("compare a right output", xp, lambda: correctness.compare(output, right, case).ok)
    stage("passes", xp, lambda: correctness.passes(output, right))
    stage("changed inputs", xp, lambda: correctness.changed_input(expected, after))
    module = task.reference()
    for name, data in wrong_outputs(output).items():

        def told(data: Bytes = data) -> tuple[str | None, tuple[str, ...]]:
            comparison = correctness.compare(output, data, case)
            return pattern(comparison), explain(comparison, expected, module)

        where, causes = stage(f"explain: {name}", xp, told, 1)
        print(f"    {where}; {' | '.join(causes) or 'nothing fits'}")
    references.free(xp)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time every stage of judging.")
    parser.add_argument("--device", choices=("numpy", "cupy"), default="numpy")
    parser.add_argument("--workload")
    parser.add_argument("--task", default="gemm")
    parser.add_argument("--cases", type=int, default=4)
    options = parser.parse_args()
    xp = importlib.import_module(options.device)
    task = load_task(options.task)
    workload = options.workload or ("emulation" if xp is np else "hardware")
    print(f"{options.device}, workload {workload}{'first ms':>18}{'later ms':>10}")
    stage("rehearsal", xp, lambda: rehearse(task, xp), 1)
    for case in conditioning.conditions(task, workload, secret=SECRET).cases[: options.cases]:
        time_case(task, case, xp)


if __name__ == "__main__":
    main()
