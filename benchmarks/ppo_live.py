"""PPO against random search on a GPU itself: env runners that ask one `ptxgym serve`, as users would start them.

    python benchmarks/ppo_live.py OUT [--seed 0] [--evaluations 500] [--runners 16] [--limit-s 400]

Both arms ask the same service at the same time, random search (without repetition) with a quarter as many questions at
once. OUT then holds `ppo-SEED.json` and `random-SEED.json` as `ppo_knobs.py` reads them, the run of `ptxgym train`, and
the logs. PPO is interrupted at the limit and random search stops there: what both have evaluated by then is compared.
`--device emulator` rehearses it without a GPU. Needs RLlib (`ptxgym[ray]`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.ppo_knobs import EVALUATIONS, RIGHT_SCORE, measures, write_arm
from benchmarks.ring_settings import ARCH, TASK, TEMPLATE
from ptxgym.evaluator import Evaluator
from ptxgym.knobs.journal import Evaluated, evaluated, read_journals
from ptxgym.knobs.template import load_template
from ptxgym.train.recipe import PpoRecipe, load_train_recipe
from ptxgym.train.rllib import JOURNALS

CHECKOUT = Path(__file__).parents[1]
STARTS_S, ENDS_S = 60.0, 45.0
"""What the service may take to listen, and PPO to end when it is interrupted."""
LATE = 100
"""So many of the last settings are shown beside as many of the first."""


def served(out: Path, device: str, environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], str]:
    """Start the service; return it with its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ptxgym", "serve", "--port", str(port), "--device", device]
    command += ["--tier", "rl"] if device == "cuda" else []
    with (out / "serve.log").open("wb") as log:
        service = subprocess.Popen(
            [*command, "--results", str(out / "served")], env=environment, cwd=CHECKOUT, stdout=log, stderr=log
        )
    until = time.monotonic() + STARTS_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return service, f"http://127.0.0.1:{port}"
        except OSError:
            if service.poll() is not None or time.monotonic() > until:
                service.kill()
                sys.exit(f"no service: {(out / 'serve.log').read_text()}")
            time.sleep(0.2)


def searched(out: Path, address: str, chosen: argparse.Namespace, until: float) -> list[Evaluated]:
    """Run `ptxgym train rllib ppo` until it ends or the time is over; return what it evaluated, in order."""
    settings = {
        "device": json.dumps(address), "seed": chosen.seed, "evaluations": chosen.evaluations,
        "trainer.num_env_runners": chosen.runners,
    }  # fmt: skip
    folder = out / f"run-{chosen.seed}"
    command = [sys.executable, "-m", "ptxgym", "train", "rllib", "ppo", "--out", str(folder)]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    with (out / "train.log").open("wb") as log:
        training = subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log, start_new_session=True)
        try:
            with suppress(subprocess.TimeoutExpired):
                training.wait(max(until - time.monotonic(), 1.0))
        finally:  # of an interrupt as well: its env runners would go on
            end(training)
    return read_journals(folder / JOURNALS)


def end(training: subprocess.Popen[bytes]) -> None:
    """Interrupt a training that has not ended; kill what does not end by it."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(subprocess.TimeoutExpired, ProcessLookupError):
            if training.poll() is None:
                os.killpg(training.pid, number)
                training.wait(ENDS_S)


def drawn(address: str, chosen: argparse.Namespace, until: float, over: threading.Event) -> list[Evaluated]:
    """Evaluate settings drawn without repetition until the time is over."""
    template = load_template(TEMPLATE).keep(load_train_recipe("ppo", PpoRecipe).keep)
    places = random.Random(chosen.seed).sample(range(template.size), chosen.evaluations)
    with Evaluator(address) as evaluator:

        def one(action: Sequence[int]) -> Evaluated | None:
            if over.is_set() or time.monotonic() > until:
                return None
            verdict = evaluator.evaluate(template.render(action), TASK, ARCH)
            return evaluated(template.setting(action), verdict)

        with ThreadPoolExecutor(max(chosen.runners // 4, 1)) as pool:
            return [each for each in pool.map(one, map(template.action, places)) if each is not None]


def told(found: Sequence[Evaluated]) -> str:
    """Return how many were right, and how fast."""
    speeds = [each.speedup for each in found if each.speedup is not None]
    mean = statistics.fmean(each.score for each in found) if found else 0.0
    fast = f"speed {statistics.fmean(speeds):.3f} on average, {max(speeds):.3f} at best" if speeds else "none timed"
    right = sum(each.score >= RIGHT_SCORE for each in found)
    return f"{len(found)} settings, {right} right, mean score {mean:.4f}, {fast}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("emulator", "cuda"), default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS)
    parser.add_argument("--runners", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit-s", type=float, default=3600.0)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    out = chosen.out.resolve()
    os.environ.setdefault("PTXGYM_TOKEN", os.urandom(16).hex())
    os.environ.setdefault("PTXGYM_SECRET", os.urandom(16).hex())
    started = time.monotonic()
    until = started + chosen.limit_s
    service, address = served(out, chosen.device, dict(os.environ))
    try:
        over = threading.Event()
        with ThreadPoolExecutor(1) as beside:
            other = beside.submit(drawn, address, chosen, until, over)
            try:
                arms = {"ppo": searched(out, address, chosen, until)}
                time_s = time.monotonic() - started
                arms["random"] = other.result()
            finally:
                over.set()
    finally:
        service.terminate()
        service.wait()
    for arm, found in arms.items():
        if not found:
            sys.exit(f"{arm} evaluated nothing: {(out / 'train.log').read_text()[-2000:]}")
        write_arm(
            out, arm, chosen.seed, [(each.setting, each.score) for each in found],
            speedups=[each.speedup for each in found], device=chosen.device, time_s=time_s,
        )  # fmt: skip
        print(f"  {told(found)}; {dict(Counter(each.status for each in found))}")
        print(f"  first {LATE}: {told(found[:LATE])}")
        print(f"  last {LATE}: {told(found[-LATE:])}")
    least = min(map(len, arms.values()))
    for name in ("right", "mean", "best", "area"):
        values = [measures([each.score for each in found], least)[name] for found in arms.values()]
        print(f"at {least} settings each, {name}: PPO {values[0]:.4f}, random search {values[1]:.4f}")


if __name__ == "__main__":
    main()
