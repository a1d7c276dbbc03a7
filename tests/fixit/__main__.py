"""The campaign: 64 mutants of teaching kernels for both architectures through all of Fixit, with scripted teachers.

python -m tests.fixit FOLDER
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path

import ptxgym
from ptxgym.cli.benching import show_tables
from ptxgym.evaluator import Evaluator
from ptxgym.fixit.build import build
from ptxgym.fixit.mine import mine
from ptxgym.fixit.pack import problems, write_set
from ptxgym.fixit.rationalise import rationalise_all
from ptxgym.fixit.recipe import load_fixit_recipe
from ptxgym.fixit.repair import EPOCH, repair_all
from ptxgym.fixit.report import mined, report
from ptxgym.fixit.solutions import Solutions
from ptxgym.fixit.workshop import Front, Workshop
from ptxgym.store.reader import read_run
from tests.fixit.scripted import CANARY, PATHS, REPAIRS, Cell, behaviour, failing_run, path_teacher, repair_teacher

CELLS = [
    Cell(arch, variant, 20, seed) for arch in ("h100", "b200") for seed, variant in enumerate(("bias", "k64-bias"))
]
SECRET = "campaign"


def main(folder: Path) -> None:
    """Run it and print what came of it, and how long each step took."""
    started = time.monotonic()

    def step(name: str) -> None:
        nonlocal started
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201
        started = time.monotonic()

    with Evaluator("emulator", secret=SECRET, builds=2, runs=2) as evaluator:
        failing_run(folder / "run", CELLS, evaluator, SECRET)
    step("failing run")
    recipe = load_fixit_recipe("balanced")
    front = Front(ptxgym=ptxgym.__version__, recipe=recipe, seed=0, runs=("campaign",), canaries=(CANARY,))
    run = read_run(folder / "run")
    print(Counter(f"{turn.verdict.status}" for turn in run.turns))  # noqa: T201
    workshop = Workshop.begin(folder / "set", front, mine([run], recipe.mine, 0))
    show_tables((mined(workshop.mined),))
    step("mine")
    with Evaluator("emulator", secret=workshop.secret, epoch=EPOCH, builds=2, runs=2) as evaluator:
        open_ = asyncio.run(repair_all(workshop, repair_teacher(workshop.mined), evaluator))
    step(f"repair, {open_} open")
    repairs = workshop.repairs()
    print(Counter((behaviour(id_, REPAIRS), found.status) for id_, found in repairs.items()))  # noqa: T201
    for direct in (False, True):
        asyncio.run(rationalise_all(workshop, path_teacher(workshop.mined), direct=direct))
        rationales = workshop.rationales(direct)
        step(f"rationalise, direct={direct}")
        print(Counter((behaviour(id_[::-1], PATHS), bool(found.text)) for id_, found in rationales.items()))  # noqa: T201
        built = build(workshop, Solutions(), direct=direct)
        target = folder / ("direct" if direct else "rows")
        write_set(target, front, built, ["repairer", "thinker"], direct=direct, parquet=True)
        step("build")
        show_tables(report(built.rows, built.dropped, built.stages))
        print("problems:", problems(target))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
