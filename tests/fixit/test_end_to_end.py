"""All of Fixit on 64 mutants of teaching kernels for both architectures, with teachers that mend, fail, cheat and leak.

Verdicts are scripted here, so that it is quick; `python -m tests.fixit` does the same on the emulator.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

import ptxgym
from ptxgym.evaluator import Evaluator
from ptxgym.fixit.build import Built, build
from ptxgym.fixit.mine import mine
from ptxgym.fixit.pack import JSONL, problems, read_rows, write_set
from ptxgym.fixit.rationalise import rationalise_all
from ptxgym.fixit.recipe import load_fixit_recipe
from ptxgym.fixit.repair import EPOCH, repair_all
from ptxgym.fixit.report import mined, report
from ptxgym.fixit.solutions import Solutions
from ptxgym.fixit.workshop import Front, Workshop
from ptxgym.store.reader import read_run
from ptxgym.submission import extract
from ptxgym.task import Task
from ptxgym.verdict import Status, Verdict
from tests.fixit.scripted import (
    CANARY,
    CHEAT,
    EVERY_REPAIR,
    LUCKY,
    PATHS,
    Cell,
    behaviour,
    failing_run,
    kernel,
    naive,
    path_teacher,
    repair_teacher,
)
from tests.store.samples import verdict

CELLS = [
    Cell(arch, variant, 16, seed) for arch in ("h100", "b200") for seed, variant in enumerate(("bias", "k64-bias"))
]
FAILURES = (
    Status.COMPILE_ERROR, Status.RUNTIME_FAULT, Status.HANG, Status.HAZARD, Status.WRONG_OUTPUT, Status.WRONG_OUTPUT,
)  # fmt: skip


class Knowing(Evaluator):
    """Knows the teaching kernels: they pass, naive ones are right, and every other text fails in a way of its own."""

    def evaluate(
        self,
        text: str,
        task: Task | str,
        arch: str = "h100",
        workload: str | None = None,
        *,
        variant: str | None = None,
    ) -> Verdict:
        name = variant or (task.variant if isinstance(task, Task) else "base")
        status, target = self._found(text, arch, name)
        found = verdict(status, target)
        changes = {"conditions": f"{self._secret.decode()}-{self._epoch}", "variant": name, "arch": arch}
        return found.model_copy(update={"provenance": found.provenance.model_copy(update=changes)})

    def _found(self, text: str, arch: str, variant: str) -> tuple[Status, bool]:
        if CHEAT in text:
            return Status.INTEGRITY, False
        if text.strip() == kernel(arch).strip() or (LUCKY in text and self._epoch == 0):
            return Status.OK, True
        if text.strip() == naive(variant).strip():
            return Status.OK, False
        return FAILURES[hashlib.sha256(text.encode()).digest()[0] % len(FAILURES)], False


@dataclass(frozen=True)
class Made:
    run: Path
    workshop: Workshop
    built: Built
    direct: Built


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A run of failures, and two sets made of it."""
    folder = tmp_path_factory.mktemp("fixit")
    with Knowing("emulator", secret="run") as evaluator:
        failing_run(folder / "run", CELLS, evaluator, "run")
    recipe = load_fixit_recipe("balanced")
    front = Front(ptxgym=ptxgym.__version__, recipe=recipe, seed=0, runs=("r",), canaries=(CANARY,))
    workshop = Workshop.begin(folder / "work", front, mine([read_run(folder / "run")], recipe.mine, 0))
    with Knowing("emulator", secret=workshop.secret, epoch=EPOCH) as evaluator:
        assert asyncio.run(repair_all(workshop, repair_teacher(workshop.mined, EVERY_REPAIR), evaluator)) == 0
    solutions, sets = Solutions(), []
    for direct in (False, True):
        assert asyncio.run(rationalise_all(workshop, path_teacher(workshop.mined), direct=direct)) == 0
        sets.append(build(workshop, solutions, direct=direct))
    return Made(folder / "run", workshop, *sets)


def test_at_least_50_kernels_of_both_architectures_fail_in_every_way(made: Made) -> None:
    found = Counter(each.arch for each in made.workshop.mined)
    assert len(made.workshop.mined) >= 60 and min(found.values()) >= 25 and set(found) == {"h100", "b200"}
    assert {each.kind for each in made.workshop.mined} == {"compile", "fault", "hang", "hazard", "numerical"}
    assert mined(made.workshop.mined).rows[-1][-1] == str(len(made.workshop.mined))


def test_only_repairs_that_pass_are_kept(made: Made) -> None:
    """None that avoids target instructions, cheats, fits the draws of the run alone, or is the failure itself."""
    repairs = made.workshop.repairs()
    seen = Counter(behaviour(each.id, EVERY_REPAIR) for each in made.workshop.mined)
    assert set(seen) == set(EVERY_REPAIR) and min(seen.values()) >= 2
    for failure in made.workshop.mined:
        repair, how = repairs[failure.id], behaviour(failure.id, EVERY_REPAIR)
        mends = how in ("right", "late")
        assert (repair.status, bool(repair.source)) == ("repaired" if mends else "failed", mends)
        assert repair.attempts == {"right": 1, "late": 2}.get(how, made.workshop.front.recipe.repair.attempts)
        if mends:
            assert repair.source.strip() == kernel(failure.arch).strip()
            assert repair.conditions not in ("", failure.conditions)
        elif how == "cheats":
            assert repair.last == "integrity"


def test_rationales_that_leak_are_left_out_and_say_how(made: Made) -> None:
    rationales = made.workshop.rationales(direct=False)
    codes = {"names": "names_repair", "quotes": "quotes_early", "recites": "recites", "good_at_last": "names_repair"}
    found = Counter[str]()
    for failure, rationale in rationales.items():
        how = behaviour(failure[::-1], PATHS)
        kept = how.startswith("good")
        if how == "quotes" and rationale.text:
            continue  # the mutant lacks no line that is worth quoting
        assert bool(rationale.text) == kept, how
        if how in codes:
            assert codes[how] in rationale.rejected
        found[how] += 1
    assert set(found) >= {"good", "good_at_last", "names", "recites"}


def test_rows_hold_the_kernels_that_passed_and_nothing_that_leaks(made: Made) -> None:
    repairs, rationales = made.workshop.repairs(), made.workshop.rationales(direct=False)
    whole = {id_ for id_, each in rationales.items() if each.text and repairs[id_].source}
    assert {row.id for row in made.built.rows} <= whole
    assert len(whole) == len(made.built.rows) + sum(
        count for reason, count in made.built.dropped.items() if reason in ("duplicate", "balance")
    )
    assert {row.arch for row in made.built.rows} == {"h100", "b200"} and len(made.built.rows) >= 15
    for row in (*made.built.rows, *made.direct.rows):
        (answer,) = row.completion
        assert extract(answer.content).text.strip() == kernel(row.arch).strip()
        assert CANARY not in answer.content and CHEAT not in answer.content and LUCKY not in answer.content
    assert {(row.env, row.variant) for row in made.direct.rows} <= {(row.env, row.variant) for row in made.built.rows}


@pytest.mark.parametrize("direct", [False, True])
def test_the_manifest_verifies_and_the_report_shows_strata(made: Made, tmp_path: Path, direct: bool) -> None:
    built = made.direct if direct else made.built
    write_set(tmp_path, made.workshop.front, built, ["repairer", "thinker"], direct=direct, parquet=False)
    assert problems(tmp_path) == ()
    rows = read_rows(tmp_path)
    tables = {table.title: table for table in report(rows, built.dropped, built.stages)}
    crossed = tables["Rows by task and kind"]
    for name, *counts in crossed.rows[:-1]:
        stratum = [row for row in rows if name == f"{row.env} {row.variant} {row.split}"]
        kinds = Counter(row.kind for row in stratum)
        assert dict(zip(crossed.columns[1:-1], map(int, counts[:-1]), strict=True)) == {
            kind: kinds[kind] for kind in crossed.columns[1:-1]
        }
        assert stratum and int(counts[-1]) == len(stratum)
    assert int(crossed.rows[-1][-1]) == len(rows) and len(crossed.rows) == len({(r.env, r.variant) for r in rows}) + 1
    text = (tmp_path / JSONL).read_text()
    (tmp_path / JSONL).write_text(text.replace("monologue" if "monologue" in text else "barrier", "Barrier", 1))
    assert any("SHA-256" in problem for problem in problems(tmp_path))


ELSEWHERE = """
import hashlib, json, sys
from pathlib import Path
from ptxgym.curriculum import Curriculum, repair_items, variant_items
from ptxgym.fixit.solutions import Solutions
from tests.fixit.scripted import first_line, kernel

envs = ("PTX-Gemm-H100", "PTX-Gemm-B200", "PTX-AttnFwd-H100")
solutions, items = Solutions(), [*variant_items(*envs)]
for env, arch in zip(envs, ("h100", "b200")):
    items += repair_items(env, "bias", kernel(arch), 8, seed=3, first_line=first_line(arch), solutions=solutions)
if sys.argv[1] == "backwards":
    items = list(reversed(items))
curriculum, drawn = Curriculum(items, seed=11), []
for number in range(300):
    item = curriculum.draw()
    drawn.append(item.model_dump_json())
    told = hashlib.sha256(f"{item.key} {number}".encode()).digest()[0]
    curriculum.tell(item.key, None if told < 8 else told < 160)
    if number == 150:
        curriculum.save(Path("state.json"))
        curriculum = Curriculum.load(Path("state.json"), items)
curriculum.save(Path("state.json"))
Path("draws.json").write_bytes(json.dumps(drawn).encode())
"""


def on_a_machine(folder: Path, run: Path, order: str, **environment: str) -> dict[str, bytes]:
    """Mine and draw in processes of another folder and environment; return the files that they wrote."""
    home = folder / "some where" / "ä" if order == "backwards" else folder
    home.mkdir(parents=True)
    shutil.copytree(run, home / f"run {order}")
    root = str(Path(ptxgym.__file__).parents[1])
    place = {**os.environ, **environment, "PYTHONPATH": root, "HOME": str(home)}
    mining = (sys.executable, "-m", "ptxgym", "fixit", "mine", f"run {order}", "--seed", "5", "--out", "work")
    drawing = (sys.executable, "-c", ELSEWHERE, order)
    for command in (mining, drawing):
        ended = subprocess.run(command, cwd=home, env=place, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr[-3000:]
    return {
        name: (home / name).read_bytes() for name in ("work/mined.jsonl", "work/fixit.json", "state.json", "draws.json")
    }


def test_two_machines_mine_and_draw_the_same(made: Made, tmp_path: Path) -> None:
    """Another hash seed, locale, time zone, folder, home and order of items make no difference of a byte."""
    one = on_a_machine(tmp_path / "one", made.run, "forwards", PYTHONHASHSEED="1", LC_ALL="C.UTF-8", TZ="UTC")
    other = on_a_machine(
        tmp_path / "other", made.run, "backwards", PYTHONHASHSEED="987654", LC_ALL="C", PYTHONUTF8="0",
        PYTHONCOERCECLOCALE="0", TZ="Asia/Kolkata", PYTHONOPTIMIZE="1",
    )  # fmt: skip
    assert one == other
    assert len(one["work/mined.jsonl"].splitlines()) >= 50
    draws = [json.loads(line) for line in json.loads(one["draws.json"])]
    assert len(draws) == 300 and len({draw["key"] for draw in draws}) > 20
    assert {"init" in draw["options"] for draw in draws} == {True, False}
