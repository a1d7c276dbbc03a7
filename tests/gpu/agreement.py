"""Executed instructions of the proven kernels: Nsight Compute's counts against the emulator's, same plan, same inputs.

    python -m tests.gpu.agreement [--out FILE]
    python -m tests.gpu.agreement --device emulator        # without a GPU: the emulator's column alone

What a kernel does with its data must agree exactly: tensor-core instructions, multiply-adds, bulk and group copies,
matrix loads and stores. What it does while it waits, and what the assembler makes of the rest, need not: those families
are shown with their ratio. Outputs are compared bit for bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ptxgym.build import Build, build
from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Bytes, Execution, InstructionCount
from ptxgym.judge.conditions import buffers, conditions
from ptxgym.judge.evidence import family_counts
from ptxgym.plan import Argument, DeviceProfile, LaunchPlan, device_profile, record
from ptxgym.task import Axes, load_arch, load_task
from ptxgym.verdict import Failure
from tests.gpu.report import Report, Row, arguments, no_gpu, say, table

EXACT: Mapping[str, tuple[str, str, str]] = {
    # name: (PTX opcode, SASS opcode, what is counted)
    "wgmma": (r"wgmma\.mma_async", r"HGMMA", "warp"),
    "TMA loads": (r"cp\.async\.bulk\.tensor\.\dd\.shared", r"UTMALDG", "thread"),
    "TMA stores": (r"cp\.async\.bulk\.tensor\.\dd\.global", r"UTMASTG", "thread"),
    "mma.sync": (r"mma\.sync", r"[HI]MMA", "warp"),
    "FP32 multiply-adds": (r"fma\.r[nzmp].*f32|mad\.r[nzmp].*f32", r"FFMA", "thread"),
    "cp.async": (r"cp\.async\.c[ag]", r"LDGSTS", "thread"),
    "ldmatrix": (r"ldmatrix", r"LDSM", "warp"),
    "stmatrix": (r"stmatrix", r"STSM", "warp"),
}
"""PTX ISA and CUDA Binary Utilities; one PTX instruction of these becomes one SASS instruction."""


def counted(counts: Iterable[InstructionCount], hardware: bool) -> dict[str, int]:
    """Return the executions of everything in `EXACT`."""
    found = dict.fromkeys(EXACT, 0)
    for count in counts:
        for name, (ptx, sass, unit) in EXACT.items():
            if re.match(sass if hardware else ptx, count.form):
                found[name] += count.warp if unit == "warp" else count.thread
    return found


def compared(emulated: Execution, profiled: Any | None, required: int) -> list[Row]:
    """Return one row per instruction and family: emulator, hardware, whether they must agree and do."""
    here = counted(emulated.counts, hardware=False)
    there = counted(profiled.counts, hardware=True) if profiled else dict.fromkeys(EXACT)
    rows = [_row(name, here[name], there[name], exact=True) for name in EXACT if here[name] or there[name]]
    ours = family_counts(emulated.counts)
    theirs = family_counts(profiled.counts) if profiled else {}
    target = load_arch("h100").matrix_families
    sums = [sum(of[f].multiply_adds for f in target if f in of) for of in (ours, theirs)]
    coverage = [min(1.0, value / required) for value in sums]
    rows.append(_row("coverage", coverage[0], coverage[1] if profiled else None, exact=True))
    for name in sorted({*ours, *theirs}):
        pair = [of[name].warp_instructions if name in of else 0 for of in (ours, theirs)]
        rows.append(_row(f"family {name}", pair[0], pair[1] if profiled else None, exact=False))
    return rows


def _row(name: str, emulator: float, hardware: float | None, *, exact: bool) -> Row:
    ratio = hardware / emulator if hardware is not None and emulator else None
    agrees = hardware is None or hardware == emulator
    return {"name": name, "emulator": emulator, "ncu": hardware, "ratio": ratio, "exact": exact, "agrees": agrees}


def prepared(text: str, axes: Axes, profile: DeviceProfile) -> tuple[Build, LaunchPlan]:
    """Build and record.

    Raises:
        RuntimeError: if the submission does not get so far.
    """
    task = load_task("gemm")
    built = build(text, declaration=task.signature.declaration(), arch=load_arch("h100").code)
    if isinstance(built, Failure):
        raise RuntimeError(built.message)
    sizes = task.sizes_bytes(axes)
    given = [Argument(t.name, "input", sizes[t.name]) for t in task.inputs]
    given += [Argument(t.name, "output", sizes[t.name]) for t in task.outputs]
    plan = record(built, given, axes, profile)
    if isinstance(plan, Failure):
        raise RuntimeError(plan.message)
    return built, plan


def profiled_run(gpu: Any, built: Build, plan: LaunchPlan, data: Mapping[str, Bytes]) -> Any:
    """Run the plan under Nsight Compute.

    Raises:
        RuntimeError: if it could not be profiled.
    """
    from ptxgym.device.cuda import ncu

    names = {buffer.name: buffer.role for buffer in plan.buffers}
    inputs = {name: bytes_ for name, bytes_ in data.items() if names.get(name) == "input"}
    results = {name: np.zeros_like(bytes_) for name, bytes_ in data.items() if names.get(name) == "output"}
    profiled = ncu.profile(gpu, built, plan, inputs, results)
    if isinstance(profiled, Failure):
        raise RuntimeError(profiled.message)
    if isinstance(profiled, ncu.Unavailable):
        raise RuntimeError(profiled.reason)
    return profiled


def main() -> None:
    options = arguments(__doc__, 120, device="cuda").parse_args()
    if no_gpu(options.device):
        return
    task, gpu, profile = load_task("gemm"), None, device_profile("h100")
    if options.device == "cuda":
        from ptxgym.device.cuda.gpu import gpu_for, profile_of

        gpu = gpu_for("h100")
        assert gpu is not None
        profile = profile_of(gpu)
    case = conditions(task, "emulation", secret=b"agreement").cases[0]
    required, data = task.required_multiply_adds(case.axes), buffers(task, case)
    device = EmulatorDevice()

    def one(text: str) -> Row:
        built, plan = prepared(text, case.axes, profile)
        emulated = device.run(built, plan, data)
        if isinstance(emulated, Failure):
            raise RuntimeError(emulated.message)
        profiled = profiled_run(gpu, built, plan, data) if gpu else None
        rows = compared(emulated, profiled, required)
        bits = profiled is None or np.array_equal(profiled.outputs["C"], emulated.buffers["C"])
        return {"good": bits and all(r["agrees"] for r in rows if r["exact"]), "outputs_equal": bits, "counts": rows}

    report = Report("agreement", options.out, options.limit_s)
    report.state(device=options.device, gpu=gpu.name if gpu else None, axes=dict(case.axes))
    sources = [(Path(solution.file).stem, task.source(solution)) for solution in task.solutions["h100"]]
    report.each(sources, one)
    device.close()
    report.end(shown(report))


def shown(report: Report) -> int:
    """Print the table; return 0 if all that must agree does."""
    columns = ["kernel", "what", "emulator", "Nsight Compute", "ratio", "must agree", "agrees"]
    lines: list[list[Any]] = []
    for key, row in report.rows.items():
        if "counts" not in row:
            say(f"{key}: {row['problem']}")
            continue
        for count in row["counts"]:
            must = "yes" if count["exact"] else ""
            agrees = count["agrees"] if count["exact"] and count["ncu"] is not None else ""
            lines.append([key, count["name"], count["emulator"], count["ncu"], count["ratio"], must, agrees])
    say(table(columns, lines))
    for key, row in report.rows.items():
        wrong = [c["name"] for c in row.get("counts", ()) if c["exact"] and not c["agrees"]]
        said = f"disagree: {', '.join(wrong)}" if wrong else "counts that must agree do"
        say(f"{key}: outputs {'equal bit for bit' if row.get('outputs_equal') else 'DIFFER'}; {said}")
    return 0 if report.rows and all(row["good"] for row in report.rows.values()) else 1


if __name__ == "__main__":
    main()
