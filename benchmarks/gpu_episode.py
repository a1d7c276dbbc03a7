"""A three-turn episode on a GPU through Gymnasium: what an agent reads after each turn.

python benchmarks/gpu_episode.py [--tier standard]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import gymnasium as gym

import ptxgym  # noqa: F401  (registers the environments)
from ptxgym.device.cuda.model import TIERS
from ptxgym.task import load_task

ENV = "PTX-Gemm-H100"
TURNS = ("mma_sync", "wgmma", "oracle")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", choices=TIERS, default="standard")
    options = parser.parse_args()
    task = load_task("gemm")
    texts = {Path(solution.file).stem: task.source(solution) for solution in task.solutions["h100"]}
    env = gym.make(ENV, turns=len(TURNS), device="cuda", tier=options.tier)
    env.reset(seed=0)
    for name in TURNS:
        started = time.perf_counter()
        observation, reward, _, truncated, info = env.step(texts[name])
        print(f"== {name}: {time.perf_counter() - started:.2f} s, reward {reward:+.2f}, truncated {truncated}")
        print(observation["feedback"])
        if "verdict" in info:
            stages = info["verdict"].measured.durations_s
            print("   ".join(f"{stage} {seconds:.2f} s" for stage, seconds in stages.items()), "\n")
    env.close()


if __name__ == "__main__":
    main()
