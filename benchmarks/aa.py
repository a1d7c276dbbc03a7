"""Is timing true? A kernel against itself, and one kernel in many evaluations.

    python benchmarks/aa.py [--repeats 20] [--evaluations 10] [--tier standard] [--out FILE]

Needs a Hopper GPU, the `gpu` extra and nvcc. First the oracle in ten evaluations with other kernels in between, each a
text that was never seen. Then kinds of races in which the truth is 1, twenty times each:

- `library`: cuBLAS through torch on both sides, both in the judge's process;
- `replay`: the oracle's plan in two executors;
- `library and replay`: the oracle's own host code in the judge's process, as a baseline would run, and its plan in an
  executor: whatever the two paths do to a kernel's time shows here;
- `library, 2048³`: a kernel of 27 µs, for which nothing is promised: it shows where the method ends.

Aims: the median within 0.5 % of 1 in 19 of 20, and 1 inside the interval in 18 of 20; ten evaluations within 1 % of
their median. *late* is the share of calls more than 20 µs above their side's median: gaps of the host, mostly.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from ptxgym.build.model import Build
from ptxgym.cache import Cache
from ptxgym.device.cuda.baselines import Baselines
from ptxgym.device.cuda.gpu import Gpu, gpu_for, profile_of
from ptxgym.device.cuda.lock import DeviceLock
from ptxgym.device.cuda.timing import PROTOCOLS, Race, TimedCall, race
from ptxgym.dossier import Dossier
from ptxgym.evaluator import Evaluator
from ptxgym.judge.conditions import conditions
from ptxgym.judge.numbers import POISON
from ptxgym.pipeline import compiled
from ptxgym.recording import recorded
from ptxgym.task import Axes, Task, load_task, oracle
from ptxgym.verdict import Failure
from tests.gpu.report import Report, Row, arguments, no_gpu, say, table
from tests.gpu.small import new_text

LATE_US = 20.0
BETWEEN = ("wgmma", "mma_sync", "naive")
"""Solutions that are judged between those whose times are compared."""
NEAR, SAME = 0.005, 0.01
CALL_LIMIT_S = 10.0
SMALL = {"M": 2048, "N": 2048, "K": 2048}
UNPROMISED = "library, 2048³"


def across_evaluations(report: Report, task: Task, tier: Any, count: int) -> None:
    """Evaluate the oracle `count` times, another kernel after each."""
    sources = {Path(one.file).stem: task.source(one) for one in task.solutions["h100"]}
    with Evaluator("cuda", tier=tier) as evaluator:

        def turn(name: str) -> Row:
            started = time.perf_counter()
            verdict = evaluator.evaluate(new_text(sources[name]), task)
            timing = verdict.measured.timing
            if timing is None:
                return {"name": name, "good": name != "oracle", "code": verdict.code, "message": verdict.message}
            return {
                "name": name,
                "good": True,
                "wall_s": round(time.perf_counter() - started, 3),
                "speedup": timing.speedup,
                "low": timing.speedup_low,
                "high": timing.speedup_high,
                "us": timing.candidate_us,
                "baseline": timing.baseline,
                "baseline_us": timing.baseline_us,
                "pairs": timing.pairs,
                "lock_s": verdict.measured.lock_held_s,
            }

        names = [name for index in range(count) for name in ("oracle", BETWEEN[index % len(BETWEEN)])]
        report.each([(f"evaluation {index} {name}", name) for index, name in enumerate(names)], turn)


class Sides:
    """The two ways in which a GEMM's times are taken, for races in this process."""

    def __init__(self, task: Task, gpu: Gpu, stack: ExitStack, axes: Axes | None = None) -> None:
        from ptxgym.device.cuda.memory import GpuMemory
        from ptxgym.device.cuda.regions import RegionPool

        self.task, self.gpu, self.stack = task, gpu, stack
        workload = task.workload("hardware")
        cases = [case for case in conditions(task, "hardware").cases if case.draw in workload.draws]
        self.axes = axes or cases[0].axes
        self.cases = [replace(case, axes=self.axes) for case in cases]
        self.memory = GpuMemory(gpu.memory_bytes, RegionPool(8 << 30))
        stack.callback(self.memory.close)
        self.text = task.source(oracle(task, "h100"))
        self.times: dict[str, list[float]] = {}

    def build(self) -> Build:
        built = compiled(self.text, self.task, "h100", Cache(), Dossier(self.text, self.task, "h100", None))
        assert isinstance(built, Build), built
        return built

    def replay(self) -> TimedCall:
        """Return calls of the oracle's plan in an executor of its own."""
        from ptxgym.device.cuda.executor import Executor

        built = self.build()
        plans = recorded(built, self.task, [self.axes], profile_of(self.gpu))
        assert not isinstance(plans, Failure), plans
        running = self.stack.enter_context(Executor.start(self.gpu))
        refused = running.load(built, tuple(plans.values()))
        assert refused is None, refused
        inputs = [self.memory.inputs(self.task, case) for case in self.cases]
        sizes = {one.name: one.size_bytes(self.axes) for one in self.task.outputs}
        poison = {one.name: POISON[one.dtype] for one in self.task.outputs}

        def call(draw: int) -> float | Failure:
            with self.memory.slot(sizes) as results:
                called = running.call(0, inputs[draw], results, timeout_s=CALL_LIMIT_S, flush=True, poison=poison)
            return called if isinstance(called, Failure) else called.time_us

        return call

    def library(self, prepare: Callable[[Mapping[str, Any], Axes], Callable[[], None]]) -> TimedCall:
        """Return calls of what `prepare` makes, as a baseline of the task."""
        import cupy

        from ptxgym.judge.correctness import passes
        from ptxgym.judge.references import expect

        def right(draw: int, outputs: Mapping[str, Any]) -> bool:
            expected = expect(self.task, self.cases[draw], cupy)
            return all(passes(expected.outputs[name], cupy.from_dlpack(data)) for name, data in outputs.items())

        draws = [expect(self.task, case, cupy).inputs for case in self.cases]
        lines = Baselines(_Only(self.task, prepare), self.axes, draws, right)  # type: ignore[arg-type]
        return lines.calls["only"]

    def cublas(self) -> TimedCall:
        return self.library(self.task.baselines().cublas)

    def own_host_code(self) -> TimedCall:
        """Return calls of the oracle through its C entry point."""
        library = self._compiled()

        def prepare(tensors: Mapping[str, Any], axes: Axes) -> Callable[[], None]:
            import torch

            pointers = [ctypes.c_void_p(tensors[name].data_ptr()) for name in "ABC"]
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            return lambda: library.run(*pointers, axes["M"], axes["N"], axes["K"], stream)

        return self.library(prepare)

    def _compiled(self) -> ctypes.CDLL:
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        source, library = folder / "oracle.cu", folder / "oracle.so"
        source.write_text(self.text)
        gencode = "arch=compute_90a,code=sm_90a"
        options = ["-std=c++17", "-O3", "-lineinfo", "-gencode", gencode, "-shared", "-Xcompiler", "-fPIC"]
        subprocess.run(["nvcc", *options, str(source), "-o", str(library), "-lcuda"], check=True)
        return ctypes.CDLL(str(library))

    def kept(self, side: str, call: TimedCall) -> TimedCall:
        """Return `call`, and keep its times."""
        mine = self.times.setdefault(side, [])

        def keeping(draw: int) -> float | Failure:
            answer = call(draw)
            if isinstance(answer, float):
                mine.append(answer)
            return answer

        return keeping

    def spread(self, side: str) -> str:
        """Return the 5th and the 95th percentile in µs."""
        parts = statistics.quantiles(self.times[side], n=20)
        return f"{parts[0]:.1f} … {parts[-1]:.1f}"

    def late(self, side: str) -> float:
        middle = statistics.median(self.times[side])
        return sum(one > middle + LATE_US for one in self.times[side]) / len(self.times[side])


class _Only:
    """A task whose only baseline is `only`."""

    def __init__(self, task: Task, prepare: Any) -> None:
        self._task, self._prepare = task, prepare

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def baselines(self) -> Any:
        return SimpleNamespace(BASELINES={"only": self._prepare})


def against_itself(sides: Sides, name: str, pair: Callable[[], Sequence[TimedCall]], tier: str, repeats: int) -> Row:
    """Race two calls of which neither is faster."""
    with DeviceLock(sides.gpu.uuid).shared():
        one, other = pair()
    calls = {"lib": sides.kept(f"{name}: one", one)}, {"c": sides.kept(f"{name}: other", other)}
    races: list[Race] = []
    with DeviceLock(sides.gpu.uuid).exclusive() as hold:
        for _ in range(repeats):
            result = race(*calls, PROTOCOLS[tier], draws=len(sides.cases))["c"]
            assert isinstance(result, Race), result
            races.append(result)
    speedups = [each.speedup for each in races]
    near = sum(abs(each.median - 1) <= NEAR for each in speedups)
    inside = sum(each.low <= 1 <= each.high for each in speedups)
    return {
        "kind": name,
        "good": near >= 0.95 * repeats and inside >= 0.9 * repeats,
        "repeats": repeats,
        "near": near,
        "inside": inside,
        "least": min(each.median for each in speedups),
        "most": max(each.median for each in speedups),
        "width": statistics.median(each.width for each in speedups),
        "one_us": statistics.median(each.baselines_us["lib"] for each in races),
        "other_us": statistics.median(each.candidate_us for each in races),
        "spread_one": sides.spread(f"{name}: one"),
        "spread_other": sides.spread(f"{name}: other"),
        "late_one": sides.late(f"{name}: one"),
        "late_other": sides.late(f"{name}: other"),
        "pairs": statistics.median(len(each.ratios) for each in races),
        "race_s": hold.held_s / repeats,
    }


def show(rows: Sequence[Row]) -> bool:
    """Print both tables; return whether all aims are met."""
    evaluations = [row for row in rows if row.get("name")]
    compared = [row for row in evaluations if row["name"] == "oracle" and "speedup" in row]
    columns = ["name", "wall s", "µs", "baseline", "its µs", "speed-up", "low", "high", "pairs", "lock s"]
    keys = ("name", "wall_s", "us", "baseline", "baseline_us", "speedup", "low", "high", "pairs", "lock_s")
    say(table(columns, [[_fine(row.get(key)) for key in keys] for row in evaluations]))
    same = False
    if compared:
        middle = statistics.median(row["speedup"] for row in compared)
        far = max(abs(row["speedup"] / middle - 1) for row in compared)
        same = far <= SAME and len(compared) == sum(row["name"] == "oracle" for row in evaluations)
        say(f"\n{len(compared)} evaluations of the oracle: median {middle:.4f}, furthest {100 * far:.2f} % away")
    for row in rows:
        if row.get("problem") or row.get("message"):
            say(f"  {row['key']}: {row.get('problem') or row.get('message')}")
    races = [row for row in rows if "kind" in row]
    shown = {
        "against itself": "kind",
        "of": "repeats",
        "near": "near",
        "inside": "inside",
        "least": "least",
        "most": "most",
        "width": "width",
        "one µs": "one_us",
        "5 … 95 %": "spread_one",
        "late": "late_one",
        "other µs": "other_us",
        "5 … 95 % ": "spread_other",
        "late ": "late_other",
        "pairs": "pairs",
        "s a race": "race_s",
    }
    say("\n" + table(list(shown), [[_fine(row[key]) for key in shown.values()] for row in races]))
    promised = [row for row in races if row["kind"] != UNPROMISED]
    return same and len(promised) == 3 and all(row["good"] for row in promised)


def _fine(value: Any) -> Any:
    return f"{value:.4f}" if isinstance(value, float) and abs(value) < 10 else value


def main() -> int:
    """Run both parts; exit 1 where an aim is missed."""
    parser = arguments(__doc__, limit_s=300, tier="standard")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--evaluations", type=int, default=10)
    options = parser.parse_args()
    if no_gpu():
        return 0
    task = load_task("gemm")
    report = Report("aa", options.out, options.limit_s)
    if options.evaluations:
        across_evaluations(report, task, options.tier, options.evaluations)
    gpu = gpu_for("h100")
    assert gpu is not None
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu.uuid  # before torch and cupy are imported
    with ExitStack() as stack:
        sides, small = Sides(task, gpu, stack), Sides(task, gpu, stack, SMALL)
        kinds: dict[str, tuple[Sides, Callable[[], Sequence[TimedCall]]]] = {
            "library": (sides, lambda: (call := sides.cublas(), call)),
            "replay": (sides, lambda: (sides.replay(), sides.replay())),
            "library and replay": (sides, lambda: (sides.own_host_code(), sides.replay())),
            UNPROMISED: (small, lambda: (call := small.cublas(), call)),
        }
        report.each(
            [(f"race {name}", name) for name in kinds],
            lambda name: against_itself(kinds[name][0], name, kinds[name][1], options.tier, options.repeats),
        )
    return 0 if show(list(report.rows.values())) else 1


if __name__ == "__main__":
    raise SystemExit(main())
