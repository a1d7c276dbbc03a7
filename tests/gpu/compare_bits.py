"""Compare the emulator's GEMM outputs with a GPU's, bit by bit.

    python tests/gpu/compare_bits.py emulate FILE.npz    # anywhere: run every solution, keep inputs and outputs
    python tests/gpu/compare_bits.py gpu FILE.npz        # on a Hopper GPU, with torch and nvcc: run and compare

Inputs are normal numbers times log-normal scales, so that sums cancel and lose terms: an accumulation model that is
only nearly right shows.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SOLUTIONS = Path(__file__).resolve().parents[2] / "tasks/gemm/solutions/h100"
M, N, K = 256, 512, 576


def bf16(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Round to BF16, to nearest even; bits in uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def emulate(file: Path) -> None:
    """Write inputs `A` [M, K], `B` [N, K] and each solution's output [M, N] to `file`."""
    from ptxgym.build import build
    from ptxgym.device.emulator.device import EmulatorDevice
    from ptxgym.plan import Argument, device_profile, record
    from ptxgym.task import load_task
    from ptxgym.verdict import Failure

    random = np.random.default_rng(5)
    a = bf16(random.standard_normal((M, K)) * np.exp(3 * random.standard_normal((M, K))))
    b = bf16(random.standard_normal((N, K)) * np.exp(2 * random.standard_normal((N, K))))
    arguments = [Argument("A", "input", a.nbytes), Argument("B", "input", b.nbytes), Argument("C", "output", 2 * M * N)]
    kept, device = {"A": a, "B": b}, EmulatorDevice()
    for source in sorted(SOLUTIONS.glob("*.cu")):
        built = build(source.read_text(), declaration=load_task("gemm").signature.declaration(), arch="sm_90a")
        if isinstance(built, Failure):
            raise SystemExit(f"{source.name}: {built.message}")
        plan = record(built, arguments, {"M": M, "N": N, "K": K}, device_profile("h100"))
        if isinstance(plan, Failure):
            raise SystemExit(f"{source.name}: {plan.message}")
        poison = np.full(2 * M * N, 0xFF, np.uint8)
        buffers = {"A": a.reshape(-1).view(np.uint8), "B": b.reshape(-1).view(np.uint8), "C": poison}
        done = device.run(built, plan, buffers)
        if isinstance(done, Failure):
            raise SystemExit(f"{source.name}: {done.message}")
        kept[source.stem] = done.buffers["C"].view(np.uint16).reshape(M, N).copy()
    device.close()
    np.savez(file, allow_pickle=False, **kept)
    print(f"{len(kept) - 2} solutions → {file}")


def compare(file: Path) -> int:
    """Run every solution of `file` on the GPU; return how many outputs differ in any bit."""
    import torch

    kept = np.load(file)
    a, b = (torch.from_numpy(kept[name].view(np.int16)).cuda() for name in "AB")
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(set(kept.files) - {"A", "B"}):
            library = Path(folder) / f"{name}.so"
            target = ["-gencode", "arch=compute_90a,code=sm_90a", "-shared", "-Xcompiler", "-fPIC", "-lcuda"]
            subprocess.run(["nvcc", "-std=c++17", "-O3", *target, SOLUTIONS / f"{name}.cu", "-o", library], check=True)
            c = torch.full((M, N), -1, dtype=torch.int16, device="cuda")
            pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, c)]
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            ctypes.CDLL(str(library)).run(*pointers, M, N, K, stream)
            torch.cuda.synchronize()
            different = int((c.cpu().numpy().view(np.uint16) != kept[name]).sum())
            differing += different > 0
            print(f"{name:10} {M * N} elements, {different} differ")
    return differing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("emulate", "gpu"))
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.mode == "emulate":
        emulate(arguments.file)
    elif compare(arguments.file):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
