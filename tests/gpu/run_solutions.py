"""Check and time the GEMM solutions on a GPU: `python tests/gpu/run_solutions.py [NAME …] [--pairs 60]`.

Needs nvcc, torch and a GPU of the task's generation, nothing of ptxgym. Each solution is compiled as a submission is
(plain shared library, C entry point), compared with float64 (float32 at large sizes) at small, odd and hardware shapes
on poisoned outputs, and timed against cuBLAS call by call in turns: heat slows blocks of calls by 10 %, not pairs.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import Any

TASKS = Path(__file__).resolve().parents[2] / "tasks"
SHAPES = ((128, 256, 64), (128, 256, 320), (256, 512, 576), (384, 768, 704), (2176, 2304, 1088), (4096, 4096, 4096))


def compile_library(source: Path, folder: Path) -> ctypes.CDLL:
    """Compile `source` to a shared library and load it."""
    library = folder / f"{source.stem}.so"
    gencode = "arch=compute_90a,code=sm_90a"
    command = ["nvcc", "-std=c++17", "-O3", "-lineinfo", "-gencode", gencode, "-shared", "-Xcompiler", "-fPIC"]
    subprocess.run([*command, str(source), "-o", str(library), "-lcuda"], check=True)
    return ctypes.CDLL(str(library))


def call(library: ctypes.CDLL, a: Any, b: Any, c: Any) -> None:
    """Call `run` on torch's current stream."""
    import torch

    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, c)]
    m, k = a.shape
    library.run(*pointers, m, b.shape[0], k, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))


def relative_error(library: ctypes.CDLL, shape: tuple[int, int, int]) -> tuple[float, float]:
    """Return the Frobenius error of the solution and of torch.matmul at (M, N, K), relative to the reference."""
    import torch

    m, n, k = shape
    torch.manual_seed(m * 31 + n * 17 + k)
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    call(library, a, b, c)
    torch.cuda.synchronize()
    wide = torch.float64 if m * n * k < 1 << 34 else torch.float32
    reference = a.to(wide) @ b.to(wide).T
    vendor = torch.matmul(a, b.T)
    norm = reference.norm()
    return float((c.to(wide) - reference).norm() / norm), float((vendor.to(wide) - reference).norm() / norm)


def time_pairs(library: ctypes.CDLL, shape: tuple[int, int, int], pairs: int) -> tuple[float, float, float]:
    """Return (candidate ms, baseline ms, median of baseline ÷ candidate), calls interleaved, L2 flushed before each."""
    import torch

    m, n, k = shape
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    flush = torch.empty(256 << 20, device="cuda", dtype=torch.uint8)

    def timed(function: Any) -> float:
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    def candidate() -> None:
        call(library, a, b, c)

    def baseline() -> None:
        torch.matmul(a, b.T, out=c)

    for _ in range(5):
        timed(candidate)
        timed(baseline)
    rows = [(timed(candidate), timed(baseline)) for _ in range(pairs)]
    return (
        statistics.median(row[0] for row in rows),
        statistics.median(row[1] for row in rows),
        statistics.median(row[1] / row[0] for row in rows),
    )


def main() -> int:
    """Print a table: solution, largest error ratio to cuBLAS, milliseconds, speed-up; exit 1 if any is wrong."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="stems of solution files; all by default")
    parser.add_argument("--arch", default="h100")
    parser.add_argument("--pairs", type=int, default=60)
    options = parser.parse_args()
    task = tomllib.loads((TASKS / "gemm" / "task.toml").read_text())
    hardware = task["workloads"]["hardware"]["axes"]
    shape = (hardware["M"], hardware["N"], hardware["K"])
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, hardware shape {shape}")
    print(f"{'solution':16} {'correct':8} {'error ÷ cuBLAS':>15} {'ms':>8} {'cuBLAS':>8} {'ratio':>7} {'TFLOP/s':>8}")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for solution in task["solutions"][options.arch]:
            path = TASKS / "gemm" / solution["file"]
            if options.names and path.stem not in options.names:
                continue
            library = compile_library(path, Path(folder))
            errors = [relative_error(library, size) for size in (*SHAPES, shape)]
            worst = max(mine / vendor if mine == mine else float("inf") for mine, vendor in errors)
            correct = worst < 1.05
            failed |= not correct
            mine, vendor, ratio = time_pairs(library, shape, 5 if path.stem == "naive" else options.pairs)
            rate = 2 * shape[0] * shape[1] * shape[2] / mine / 1e9
            print(f"{path.stem:16} {correct!s:8} {worst:15.4f} {mine:8.3f} {vendor:8.3f} {ratio:7.3f} {rate:8.0f}")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
