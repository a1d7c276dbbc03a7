"""Run the conformance kernels on a Hopper GPU and keep what they did in the golden file.

    python -m tests.gpu.run_conformance [--all] [--out tests/golden/h200.npz] [--nvcc nvcc]

Measures the cases that the file does not have, or that have changed since; with --all every case again. Needs numpy
and nvcc; takes well under a minute. Cases that no longer exist leave the file.
`tests/device/emulator/tensor/test_golden.py` replays every case of the file on the emulator.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.gpu.cases import Case, all_cases
from tests.gpu.cases.ptx import module

SOURCES = Path(__file__).with_name("conformance")
GOLDEN = SOURCES.parents[1] / "golden" / "h200.npz"
JOBS_TIMEOUT_S = 30
"""All cases together take a few seconds; one that hangs is given up after this."""
HANG = 702  # CUDA_ERROR_LAUNCH_TIMEOUT


def compile_all(nvcc: str, cases: list[Case], folder: Path) -> list[Path]:
    """Compile the runner and both modules, at the same time; return the command's words."""
    (folder / "instructions.ptx").write_text(module([case.ptx for case in cases if case.ptx]))
    cubin = [nvcc, "-std=c++17", "-O2", "-gencode", "arch=compute_90a,code=sm_90a", "-cubin"]
    ptx = [nvcc, "-arch=sm_90a", "-cubin"]
    runner, kernels, instructions = folder / "runner", folder / "kernels.cubin", folder / "instructions.cubin"
    commands = (
        [nvcc, "-std=c++17", "-O2", "-o", runner, SOURCES / "runner.cpp", "-lcuda"],
        [*cubin, "-o", kernels, SOURCES / "kernels.cu"],
        [*ptx, "-o", instructions, folder / "instructions.ptx"],
    )
    running = [subprocess.Popen(command) for command in commands]
    for process in running:
        if process.wait(timeout=300):
            raise SystemExit(f"failed: {process.args}")
    return [runner, kernels, instructions]


def run(program: list[Path], cases: list[Case], folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the status and output of each case. A faulting case loses its process, not the cases after it."""
    runner, *modules = program
    results: dict[str, tuple[int, bytes]] = {}
    rest = cases
    while rest:
        (folder / "jobs").write_bytes(b"".join(case.job() for case in rest))
        command = [runner, folder / "jobs", folder / "results", *modules]
        hangs = False
        try:
            subprocess.run(command, check=True, timeout=JOBS_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            hangs = True
        data, at, done = (folder / "results").read_bytes(), 0, 0
        while at < len(data):
            case = rest[done]
            status = int.from_bytes(data[at : at + 4], "little", signed=True)
            output = data[at + 4 : at + 4 + case.out_bytes] if status == 0 else b""
            results[case.name] = (status, output)
            at, done = at + 4 + len(output), done + 1
        if hangs and done < len(rest):
            results[rest[done].name] = (HANG, b"")
            done += 1
        if not done:
            raise RuntimeError(f"the program wrote no result for {rest[0].name}")
        rest = rest[done:]
    return results


def device_name() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()[0]


def known(file: Path, cases: list[Case], device: str) -> tuple[dict[str, int], dict[str, np.ndarray | str]]:
    """Return statuses and outputs, or their digests, of the file that still hold."""
    if not file.exists():
        return {}, {}
    golden = np.load(file)
    about = json.loads(str(golden["about"]))
    if about["device"].partition(",")[0] != device.partition(",")[0]:
        raise SystemExit(f"{file} was measured on {about['device']}, this is {device}: pass --all, or another --out")
    same = {case.name for case in cases if about["inputs"].get(case.name) == case.digest}
    statuses = {name: status for name, status in about["status"].items() if name in same}
    digests = {name: digest for name, digest in about["digests"].items() if name in same}
    return statuses, digests | {name: golden[name] for name in same if name in golden.files}


def keep(
    file: Path, device: str, cases: list[Case], statuses: dict[str, int], outputs: dict[str, np.ndarray | str]
) -> None:
    """Write the golden file. Digests stand together in `about`: as an array, each would take 240 bytes."""
    about = {
        "device": device,
        "status": statuses,
        "inputs": {case.name: case.digest for case in cases},
        "digests": {name: output for name, output in outputs.items() if isinstance(output, str)},
    }
    arrays = {name: output for name, output in outputs.items() if not isinstance(output, str)}
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f"{file.name}.new")
    with fresh.open("wb") as stream:
        np.savez_compressed(stream, about=np.array(json.dumps(about)), **arrays)
    fresh.replace(file)


def table(cases: list[Case], statuses: dict[str, int], measured: set[str]) -> list[str]:
    lines = [f"{'family':<12} {'cases':>6} {'measured now':>13} {'faults':>7}"]
    for family in sorted({case.family for case in cases}):
        members = [case.name for case in cases if case.family == family]
        faults = [name for name in members if statuses[name]]
        named = " ".join(f"{name}={statuses[name]}" for name in faults)
        lines.append(f"{family:<12} {len(members):>6} {len(measured & set(members)):>13} {len(faults):>7}  {named}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="Keep what a Hopper GPU does in the golden file.")
    parser.add_argument("--all", action="store_true", help="measure every case again")
    parser.add_argument("--out", type=Path, default=GOLDEN)
    parser.add_argument("--nvcc", default="nvcc")
    options = parser.parse_args()
    cases, device = all_cases(), device_name()
    statuses, outputs = ({}, {}) if options.all else known(options.out, cases, device)
    todo = [case for case in cases if case.name not in statuses]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = run(compile_all(options.nvcc, todo, folder), todo, folder) if todo else {}
    for case in todo:
        statuses[case.name], output = results[case.name]
        if statuses[case.name] == 0:
            outputs[case.name] = case.condensed(np.frombuffer(output, np.uint8))
    keep(options.out, device, cases, statuses, outputs)
    lines = table(cases, statuses, {case.name for case in todo})
    lines.append(f"{len(todo)} of {len(cases)} cases measured on {device} → {options.out}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if any(status < 0 for status in statuses.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
