"""Run the conformance kernels on a Hopper GPU and write the golden file.

    python tests/gpu/run_conformance.py [--out tests/golden/h200.npz] [--nvcc nvcc]

Needs numpy and nvcc; takes well under a minute. The emulator's tests replay every case of the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from cases import Case, all_cases  # the script runs without the project installed

SOURCE = Path(__file__).with_name("conformance.cu")
KEEP_BYTES = 8192
"""Longer outputs are kept as a digest."""


def compile_program(nvcc: str, folder: Path) -> Path:
    program = folder / "conformance"
    subprocess.run(
        [nvcc, "-std=c++17", "-O2", "-gencode", "arch=compute_90a,code=sm_90a", "-o", program, SOURCE], check=True
    )
    return program


def run(program: Path, cases: list[Case], folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the status and output of each case. A faulting case loses its process, not the cases after it."""
    results: dict[str, tuple[int, bytes]] = {}
    rest = cases
    while rest:
        (folder / "jobs").write_bytes(b"".join(case.job() for case in rest))
        subprocess.run([program, folder / "jobs", folder / "results"], check=True, timeout=120)
        data, at, done = (folder / "results").read_bytes(), 0, 0
        while at < len(data):
            case = rest[done]
            status = int.from_bytes(data[at : at + 4], "little", signed=True)
            output = data[at + 4 : at + 4 + case.out_bytes] if status == 0 else b""
            results[case.name] = (status, output)
            at, done = at + 4 + len(output), done + 1
        if not done:
            raise RuntimeError(f"the program wrote no result for {rest[0].name}")
        rest = rest[done:]
    return results


def device_name() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the golden file of the emulator's conformance tests.")
    parser.add_argument("--out", type=Path, default=SOURCE.parents[1] / "golden" / "h200.npz")
    parser.add_argument("--nvcc", default="nvcc")
    options = parser.parse_args()
    cases = all_cases()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = run(compile_program(options.nvcc, folder), cases, folder)
    arrays: dict[str, np.ndarray] = {}
    statuses: dict[str, int] = {}
    for case in cases:
        status, output = results[case.name]
        statuses[case.name] = status
        if status == 0:
            kept = output if len(output) <= KEEP_BYTES or case.probe else hashlib.sha256(output).digest()
            arrays[case.name] = np.frombuffer(kept, np.uint8)
    inputs = {case.name: hashlib.sha256(case.job()).hexdigest()[:16] for case in cases}
    about = json.dumps({"device": device_name(), "status": statuses, "inputs": inputs})
    options.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(options.out, about=np.array(about), **arrays)
    table = [f"{'family':<12} {'cases':>6} {'failed':>7}"]
    for family in sorted({case.name.split("/")[0] for case in cases}):
        members = [case.name for case in cases if case.name.split("/")[0] == family]
        failed = [name for name in members if statuses[name]]
        table.append(
            f"{family:<12} {len(members):>6} {len(failed):>7}  {' '.join(f'{n}={statuses[n]}' for n in failed)}"
        )
    table.append(f"{len(cases)} cases on {device_name()} → {options.out} ({options.out.stat().st_size // 1024} KB)")
    sys.stdout.write("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
