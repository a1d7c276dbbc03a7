"""Mutants of the proven kernels on hardware: what tells that something is wrong, the numbers, memcheck, racecheck?

    python -m tests.mutation --json emulated.json                       # anywhere: the emulator's column
    python -m tests.gpu.mutation --emulated emulated.json --out FILE    # on a Hopper GPU
    python -m tests.gpu.mutation --device emulator --limit-s 30         # a rehearsal: mutants are assembled, not run

Every mutant is assembled (where its PTX was changed) and run three times, each a cold call, then once under each tool.
One that hangs does so under the tools as well, and is not shown to them. The kernels as they are come first: what a
tool says of them is a false alarm, and tells nothing of a mutant. Started again with the same file the campaign goes
on; with `--limit-s 0` it only prints.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ptxgym.build import Build, find_toolchain
from ptxgym.verdict import Failure
from tests.gpu.report import Report, Row, arguments, no_gpu, say, table
from tests.mutation.campaign import Subject, Target, right, subjects
from tests.mutation.targets import GEMM, load

CALLS = 3
CALL_LIMIT_S, TOOL_LIMIT_S, ASSEMBLY_LIMIT_S = 2.0, 20.0, 60.0
TOOLS = ("memcheck", "racecheck")
UNCHANGED = "(unchanged)"


def assembled(target: Target, subject: Subject, folder: Path) -> Build:
    """Return the build of a mutant, with its own PTX, cubin and SASS.

    Raises:
        RuntimeError: if the assembler refuses it.
    """
    if subject.ptx is None:
        return target.build
    stem = folder / subject.key.replace("/", "-")
    ptx, cubin = stem.with_suffix(".ptx"), stem.with_suffix(".cubin")
    ptx.write_text(subject.ptx)
    command = [find_toolchain().root / "bin" / "ptxas", "-arch=sm_90a", "-lineinfo", ptx, "-o", cubin]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASSEMBLY_LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"ptxas: {done.stderr.strip()[:200]}")
    key, sass = f"{target.build.key}-{stem.name}", stem.with_suffix(".sass")
    return dataclasses.replace(target.build, ptx=ptx, cubin=cubin, sass=sass, folder=folder, key=key)


def numbers(gpu: Any, target: Target, build: Build, subject: Subject) -> str:
    """Run a mutant; return `right`, `wrong`, or the code of its failure."""
    from ptxgym.device.cuda.executor import Executor

    roles = {buffer.name: buffer.role for buffer in subject.plan.buffers}
    inputs = {name: data for name, data in target.buffers.items() if roles.get(name) == "input"}
    with Executor.start(gpu) as executor:
        refused = executor.load(build, (subject.plan,))
        if refused is not None:
            return refused.code
        for _ in range(CALLS):
            results = {name: np.zeros_like(target.buffers[name]) for name in target.expected}
            called = executor.call(0, inputs, results, timeout_s=CALL_LIMIT_S)
            if isinstance(called, Failure):
                return called.code
            if not right(target, results):
                return "wrong"
    return "right"


def tools(gpu: Any, target: Target, build: Build, subject: Subject) -> Row:
    """Return per tool the codes of its findings, None where the tool did not work."""
    from ptxgym.device.cuda.sanitizer import sanitize

    roles = {buffer.name: buffer.role for buffer in subject.plan.buffers}
    inputs = {name: data for name, data in target.buffers.items() if roles.get(name) == "input"}

    def codes(tool: Any) -> list[str] | None:  # each alone: together they share a limit on findings
        found = sanitize(gpu, build, subject.plan, inputs, (tool,), timeout_s=TOOL_LIMIT_S)
        return sorted({finding.code for finding in found}) if isinstance(found, tuple) else None

    with ThreadPoolExecutor(len(TOOLS)) as beside:
        return dict(zip(TOOLS, beside.map(codes, TOOLS), strict=True))


def unchanged(target: Target) -> Subject:
    """Return the kernel as it is: what a tool says of it, it says of no mutant's fault."""
    return Subject(f"{target.name}/original", UNCHANGED, "", 0, frozenset(), None, target.plan)


def on_hardware(gpu: Any, folder: Path, item: tuple[Target, Subject]) -> Row:
    """Return the row of one mutant."""
    target, subject = item
    row: Row = {"operator": subject.operator, "detail": subject.detail, "line": subject.line, "good": True}
    build = assembled(target, subject, folder)
    if gpu is None:
        return row | {"numbers": None, **dict.fromkeys(TOOLS)}
    row["numbers"] = numbers(gpu, target, build, subject)
    seen = dict.fromkeys(TOOLS) if row["numbers"] == "cuda.hang" else tools(gpu, target, build, subject)
    return row | seen


def summary(rows: Iterable[Row]) -> list[list[Any]]:
    """Return one line per operator: sites, and how many of its mutants each way of looking told."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["operator"], []).append(row)
    lines = [[operator, *_counts(group)] for operator, group in groups.items()]
    return [*lines, ["all", *_counts([row for group in groups.values() for row in group])]]


def _counts(group: list[Row]) -> list[int | None]:
    def count(told: Any) -> int:
        return sum(bool(told(row)) for row in group)

    emulated = all("emulated" in row for row in group)
    return [
        len(group),
        count(lambda r: r["emulated"] in ("named", "found")) if emulated else None,
        count(lambda r: r["emulated"] == "wrong") if emulated else None,
        count(lambda r: r["numbers"] == "wrong"),
        count(lambda r: r["numbers"] not in ("wrong", "right", None)),
        count(lambda r: r["memcheck"]),
        count(lambda r: r["racecheck"]),
        count(lambda r: r["emulated"] in ("named", "found") and silent(r)) if emulated else None,
        count(lambda r: r["emulated"] == "survived" and not silent(r)) if emulated else None,
    ]


def without_false_alarms(rows: Mapping[str, Row]) -> dict[str, Row]:
    """Return the rows of mutants without what the tools say of the unchanged kernel as well."""
    kept = {}
    for key, row in rows.items():
        alarms = rows.get(f"{key.partition('/')[0]}/original", {})
        if "operator" in row and row["operator"] != UNCHANGED:
            codes = {tool: [c for c in row[tool] or () if c not in (alarms.get(tool) or ())] for tool in TOOLS}
            kept[key] = {**row, **codes}
    return kept


def silent(row: Row) -> bool:
    """Whether nothing on the GPU told that a mutant is wrong."""
    return row["numbers"] in ("right", None) and not any(row[tool] for tool in TOOLS)


def main() -> None:
    parser = arguments(__doc__, 150, device="cuda")
    parser.add_argument("--emulated", type=Path, help="what `python -m tests.mutation --json` wrote")
    parser.add_argument("--workers", type=int, default=6, help="mutants at once")
    parser.add_argument("--every", type=int, default=1, help="run only every so many mutants")
    options = parser.parse_args()
    report = Report("mutation", options.out, options.limit_s)
    gpu = None
    if options.limit_s > 0 and options.device == "cuda":
        if no_gpu():
            return
        from ptxgym.device.cuda.gpu import gpu_for

        gpu = gpu_for("h100")
    if options.limit_s > 0:
        targets = [load(name) for name in GEMM]
        items = [(subject.key, (target, subject)) for target in targets for subject in subjects(target)]
        originals = [(f"{target.name}/original", (target, unchanged(target))) for target in targets]
        with tempfile.TemporaryDirectory() as folder:
            report.each(
                [*originals, *items[:: options.every]], partial(on_hardware, gpu, Path(folder)), options.workers
            )
        report.state(gpu=gpu.name if gpu else None)
    if options.emulated is not None:
        for result in json.loads(options.emulated.read_text()):
            if result["key"] in report.rows and report.rows[result["key"]]["operator"] == result["operator"]:
                report.rows[result["key"]]["emulated"] = result["outcome"]
                report.rows[result["key"]]["first"] = result["first"]
        report.state(emulated=str(options.emulated.name))
    report.end(shown(report))


def shown(report: Report) -> int:
    """Print the table; return 0 if every mutant could be judged."""
    mutants = without_false_alarms(report.rows)
    columns = ["operator", "sites", "emulator finds", "emulator's numbers", "GPU's numbers", "GPU fault or hang"]
    columns += ["memcheck", "racecheck", "emulator alone", "GPU alone"]
    say(table(columns, summary(mutants.values())))
    for key, row in report.rows.items():
        if "operator" not in row:
            say(f"  {key}: {row['problem']}")
        elif row["operator"] == UNCHANGED:
            said = ", ".join(code for tool in TOOLS for code in row[tool] or ()) or "nothing"
            say(f"  {key}: numbers {row['numbers']}; the tools say of it: {said}")
        elif row.get("emulated") == "survived" and not silent(mutants[key]):
            told = ", ".join([str(row["numbers"]), *(code for tool in TOOLS for code in mutants[key][tool])])
            say(f"  {key} {row['operator']} (line {row['line']}): told on the GPU alone: {told}")
    return 0 if all("operator" in row for row in report.rows.values()) else 1


if __name__ == "__main__":
    main()
