"""Everything that needs a GPU, in one command: the tests marked `gpu`, then every campaign with its table.

    python -m tests.gpu [--out FOLDER] [--only NAME …] [--limit-s SECONDS]

Each part runs in a process of its own, within its own time; one that fails or hangs does not stop the others. With
several GPUs, each takes the next part. What they measured lies in FOLDER as JSON, and a part that was stopped goes on
there when it is started again.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ptxgym.device.cuda.gpu import ARCH_CC, Gpu, gpus
from tests.gpu.report import no_gpu, say, table

GRACE_S = 60.0
"""A part stops by itself at its limit; this much later it is stopped."""
CHECKOUT = Path(__file__).parents[2]
_CAMPAIGN = (sys.executable, "-m")
PARTS: Mapping[str, tuple[tuple[str, ...], float]] = {
    # name: (command, seconds)
    "conformance": ((*_CAMPAIGN, "tests.gpu.run_conformance"), 120),
    "tests": ((*_CAMPAIGN, "pytest", "-q", "-m", "gpu", "tests/gpu", "--ignore=tests/gpu/test_exploits.py"), 300),
    "agreement": ((*_CAMPAIGN, "tests.gpu.agreement"), 120),
    "episode": ((*_CAMPAIGN, "tests.gpu.episode"), 150),
    "gpu_step": ((sys.executable, "benchmarks/gpu_step.py"), 140),
    "aa": ((sys.executable, "benchmarks/aa.py"), 160),
    "oracles": ((*_CAMPAIGN, "tests.gpu.oracles"), 150),
    "mixed": ((*_CAMPAIGN, "tests.gpu.mixed"), 300),
    "exploits": ((*_CAMPAIGN, "tests.gpu.exploits"), 360),
    "mutation": ((*_CAMPAIGN, "tests.gpu.mutation"), 240),
}
"""`test_exploits.py` asks what the campaign `exploits` shows."""
PRINTS_ALONE = ("tests",)
EMULATED = "emulated.json"
"""What `python -m tests.mutation --json` wrote, if it lies in the folder: shown beside what hardware finds."""


def command_of(name: str, out: Path, limit_s: float) -> list[str]:
    """Return the command of a part."""
    command = list(PARTS[name][0])
    if name in PRINTS_ALONE:
        return command
    suffix = "npz" if name == "conformance" else "json"
    command += ["--out", str(out / f"{name}.{suffix}")]
    if name == "mutation" and (out / EMULATED).exists():
        command += ["--emulated", str(out / EMULATED)]
    return command if name == "conformance" else [*command, "--limit-s", str(limit_s)]


def run(name: str, out: Path, limit_s: float, gpu: Gpu) -> tuple[str, float]:
    """Run a part on `gpu`, its output to a file and then to the screen; return how it ended and its seconds."""
    started = time.perf_counter()
    log = out / f"{name}.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            command_of(name, out, limit_s),
            cwd=CHECKOUT,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu.uuid},
        )
        try:
            code = process.wait(limit_s + GRACE_S)
            ended = "ok" if code == 0 else f"exit {code}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ended = "stopped"
    seconds = time.perf_counter() - started
    say(f"\n━━ {name}: {ended} after {seconds:.0f} s\n{log.read_text(errors='replace').rstrip()}")
    return ended, seconds


def run_all(names: list[str], out: Path, limit_s: float | None) -> dict[str, tuple[str, float]]:
    """Run the parts, each on the next GPU that is free."""
    idle: queue.SimpleQueue[Gpu] = queue.SimpleQueue()
    usable = [gpu for gpu in gpus() if gpu.cc in ARCH_CC.values() and not gpu.mig]
    for gpu in usable:
        idle.put(gpu)

    def on_next_gpu(name: str) -> tuple[str, float]:
        gpu = idle.get()
        try:
            return run(name, out, limit_s or PARTS[name][1], gpu)
        finally:
            idle.put(gpu)

    with ThreadPoolExecutor(len(usable)) as lanes:
        return dict(zip(names, lanes.map(on_next_gpu, names), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=CHECKOUT / ".cache" / "gpu")
    parser.add_argument("--only", nargs="*", choices=tuple(PARTS), default=tuple(PARTS))
    parser.add_argument("--limit-s", type=float, help="of every part; by default its own")
    options = parser.parse_args()
    if no_gpu():
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    ended = run_all(list(options.only), options.out, options.limit_s)
    say("\n" + table(["part", "ended", "seconds"], [[name, how, round(s, 1)] for name, (how, s) in ended.items()]))
    say(f"files: {options.out}")
    return 0 if all(how == "ok" for how, _ in ended.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
