from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ptxgym.envs import load_env
from ptxgym.errors import UsageError
from ptxgym.fixit.build import Built, build
from ptxgym.fixit.pack import (
    CARD,
    JSONL,
    MANIFEST,
    PARQUET,
    problems,
    read_manifest,
    read_parquet,
    read_rows,
    write_set,
)
from ptxgym.fixit.recipe import BuildRules, FixitRecipe, load_fixit_recipe
from ptxgym.fixit.records import FailedKernel, Rationale, Repair
from ptxgym.fixit.report import report
from ptxgym.fixit.solutions import Solutions
from ptxgym.fixit.workshop import RATIONALES, REPAIRS, Front, Workshop
from ptxgym.prompt import render_prompt
from ptxgym.task import load_task, oracle
from tests.fixit.fakes import failure
from tests.fixit.scripted import CANARY, GOOD, kernel

FINE = GOOD.format(headline="the numbers are wrong")
RIGHT = kernel("h100")
EDITS = (
    ("parity ^= 1", "parity ^= 0"),
    ("    wgmma_fence();\n", ""),
    ("    wgmma_commit();\n", ""),
    ("first > 0 || k > 0", "true"),
    ("kBytesA + kBytesB);", "kBytesA);"),
    ("tma_load_2d(tiles, &map_a, &full, first, m)", "tma_load_2d(tiles, &map_a, &full, m, first)"),
    ("const int m = blockIdx.y", "const int m = blockIdx.x"),
    ("] + __bfloat162float", "] - __bfloat162float"),
)
WRONG = tuple(RIGHT.replace(old, new) for old, new in EDITS)
Line = tuple[FailedKernel, str, str]
"""A failure, its repair, its rationale."""


@pytest.fixture(scope="module")
def solutions() -> Solutions:
    return Solutions()


def lines(**changes: Any) -> list[Line]:
    kinds = ("numerical", "numerical", "numerical", "hazard", "hang", "numerical", "numerical", "compile")
    return [(failure(text, kind=kinds[at], turn=at % 3 + 1, **changes), RIGHT, FINE) for at, text in enumerate(WRONG)]


def a_workshop(folder: Path, given: Sequence[Line], rules: BuildRules = BuildRules(), direct: bool = False) -> Workshop:
    recipe = FixitRecipe(name="test", summary="for tests", build=rules)
    front = Front(ptxgym="0", recipe=recipe, seed=3, runs=("r",), canaries=(CANARY,))
    workshop = Workshop.begin(folder, front, [each for each, _, _ in given])
    with workshop.writing(REPAIRS, "repair") as (file, _):
        for each, kernel_, _ in given:
            file.append(
                Repair(failure=each.id, status="repaired", attempts=1, source=kernel_, score=0.5, teacher="repairer")
            )
    with workshop.writing(RATIONALES, "rationale") as (file, _):
        for each, _, text in given:
            file.append(Rationale(row=each.id, text=text, direct=direct, teacher="thinker"))
    return workshop


def test_a_row_is_task_failure_feedback_then_rationale_and_kernel(tmp_path: Path, solutions: Solutions) -> None:
    built = build(a_workshop(tmp_path, lines()[:1]), solutions)
    (row,) = built.rows
    assert [message.role for message in row.prompt] == ["user", "assistant", "user"]
    assert row.prompt[0].content == render_prompt(load_env("PTX-Gemm-H100").of_variant("bias"))
    assert row.prompt[1].content == f"```cuda\n{WRONG[0].rstrip()}\n```\n"
    assert row.prompt[2].content == "it is wrong"
    (answer,) = row.completion
    assert answer.role == "assistant"
    assert answer.content == f"<think>\n{FINE.strip()}\n</think>\n\n```cuda\n{RIGHT.rstrip()}\n```\n"
    assert (row.kind, row.turn, row.variant, row.score) == ("numerical", 1, "bias", 0.5)


def test_direct_rows_hold_no_failure_and_each_kernel_once(tmp_path: Path, solutions: Solutions) -> None:
    built = build(a_workshop(tmp_path, lines(), direct=True), solutions, direct=True)
    (row,) = built.rows
    assert built.stages == {"mined": 8, "settled": 8, "repaired": 8, "distinct": 1, "with_rationale": 8, "kept": 1}
    assert [message.role for message in row.prompt] == ["user"]
    assert (row.kind, row.turn, row.code) == ("direct", 0, "")
    assert not any(wrong.rstrip() in row.completion[0].content for wrong in WRONG)


def test_mutants_of_one_kernel_with_other_edits_are_no_duplicates(tmp_path: Path, solutions: Solutions) -> None:
    built = build(a_workshop(tmp_path, lines()), solutions)
    assert len(built.rows) == len(WRONG)
    assert built.dropped == {}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda line: (failure(_other_names(line[0].source)), _other_names(RIGHT), FINE), "duplicate"),
        (lambda line: (failure(line[0].source + "\n// again"), RIGHT, FINE), "duplicate"),
        (lambda line: (line[0], RIGHT, "I was given the fixed kernel. " + FINE), "names_repair"),
        (lambda line: (line[0], RIGHT, FINE + CANARY), "canary"),
        (lambda line: (failure(line[0].source, f"see {CANARY}"), RIGHT, FINE), "canary"),
        (lambda line: (line[0], RIGHT + "// \ud800", FINE), "encoding"),
        (lambda line: (line[0], _oracle(), FINE), "solution"),
        (lambda line: (failure(_oracle().replace("parity ^= 1", "parity ^= 0")), RIGHT, FINE), "solution"),
        (lambda line: (line[0], RIGHT, FINE * 300), "too_long"),
        (lambda line: (line[0], RIGHT, ""), "no_rationale"),
    ],
)  # fmt: skip
def test_what_must_not_be_learnt_is_left_out(tmp_path: Path, solutions: Solutions, change: Any, reason: str) -> None:
    """One bad line beside a good one of another edit, which stays."""
    good, base = lines()[3], lines()[0]
    bad = change(base)
    given = [good, base, bad] if reason == "duplicate" else [good, bad]
    built = build(a_workshop(tmp_path, given), solutions)
    assert built.dropped == {reason: 1}
    assert good[0].id in {row.id for row in built.rows}
    assert len(built.rows) == len(given) - 1


def _other_names(text: str) -> str:
    return text.replace("sums", "totals").replace("parity", "phase_bit")


def _oracle() -> str:
    return load_task("gemm").source(oracle(load_task("gemm"), "h100"))


def test_long_rows_are_left_out(tmp_path: Path, solutions: Solutions) -> None:
    (row,) = build(a_workshop(tmp_path / "a", lines()[:1]), solutions).rows
    for most, dropped in ((row.tokens, {}), (row.tokens - 1, {"too_many_tokens": 1})):
        given = a_workshop(tmp_path / str(most), lines()[:1], BuildRules(most_tokens=most))
        assert build(given, solutions).dropped == dropped


def test_a_set_is_balanced_on_request(tmp_path: Path, solutions: Solutions) -> None:
    equal = build(a_workshop(tmp_path, lines(), BuildRules(size=5, balance="equal")), solutions)
    assert equal.dropped == {"balance": 3}
    kinds = [row.kind for row in equal.rows]
    assert {kinds.count(kind) for kind in ("hazard", "hang", "compile")} == {1}


def a_set(folder: Path, built: Built, front: Front, **changes: Any) -> Path:
    write_set(folder, front, built, ["repairer", "thinker"], **{"direct": False, "parquet": True, **changes})
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, solutions: Solutions) -> tuple[Built, Front]:
    workshop = a_workshop(tmp_path_factory.mktemp("workshop"), lines())
    return build(workshop, solutions), workshop.front


def test_a_set_verifies_and_is_the_same_when_it_is_made_again(tmp_path: Path, made: tuple[Built, Front]) -> None:
    one, two = a_set(tmp_path / "one", *made), a_set(tmp_path / "two", *made)
    assert problems(one) == ()
    assert {path.name for path in one.iterdir()} == {MANIFEST, JSONL, PARQUET, CARD}
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes(), path.name
    manifest = read_manifest(one)
    assert (manifest.rows, manifest.seed, manifest.teachers) == (len(WRONG), 3, ("repairer", "thinker"))
    assert a_set(one, *made) == one  # written over itself
    assert problems(one) == ()


def test_jsonl_and_parquet_hold_the_rows_as_trainers_read_them(tmp_path: Path, made: tuple[Built, Front]) -> None:
    folder = a_set(tmp_path, *made)
    plain = [json.loads(line) for line in (folder / JSONL).read_text().splitlines()]
    assert plain == read_parquet(folder / PARQUET)
    assert [row["id"] for row in plain] == [row.id for row in made[0].rows] == [row.id for row in read_rows(folder)]
    assert set(plain[0]["completion"][0]) == {"role", "content"}


def _edit(path: Path, old: bytes, new: bytes) -> None:
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new, 1))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: _edit(folder / JSONL, b"parity ^= 0", b"parity ^= 2"), "rows_sha256"),
        (lambda folder: (folder / JSONL).write_bytes((folder / JSONL).read_bytes().split(b"\n", 1)[1]), "7 rows"),
        (lambda folder: (folder / PARQUET).write_bytes(b"PAR1" + bytes(100)), "rows.parquet: SHA-256"),
        (lambda folder: (folder / CARD).unlink(), "README.md: missing"),
        (lambda folder: (folder / "more.jsonl").write_text("x"), "more.jsonl: not in the manifest"),
        (lambda folder: _edit(folder / MANIFEST, b'"most_tokens": 65536', b'"most_tokens": 65537'), "recipe_sha256"),
    ],
)
def test_what_was_changed_after_it_was_made_is_found(
    tmp_path: Path, made: tuple[Built, Front], spoil: Any, said: str
) -> None:
    folder = a_set(tmp_path, *made)
    spoil(folder)
    assert any(said in problem for problem in problems(folder)), problems(folder)


def test_parquet_of_another_set_is_found_even_if_its_hash_fits(tmp_path: Path, made: tuple[Built, Front]) -> None:
    built, front = made
    folder, other = a_set(tmp_path / "a", *made), tmp_path / "b"
    a_set(other, Built(built.rows[1:], {}, {}), front)
    (folder / PARQUET).write_bytes((other / PARQUET).read_bytes())
    ours, theirs = (json.loads((each / MANIFEST).read_text()) for each in (folder, other))
    ours["files"][PARQUET] = theirs["files"][PARQUET]
    (folder / MANIFEST).write_text(json.dumps(ours))
    assert problems(folder) == ("rows.parquet: its rows are not those of rows.jsonl",)


def test_without_pyarrow_it_says_what_to_install(
    tmp_path: Path, made: tuple[Built, Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'ptxgym\[parquet\]'.*--jsonl-only"):
        a_set(tmp_path / "a", *made)
    assert not (tmp_path / "a").exists()
    assert problems(a_set(tmp_path / "b", *made, parquet=False)) == ()


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path, made: tuple[Built, Front]) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="no training set"):
        a_set(tmp_path, *made)
    a_set(tmp_path / "half", *made)
    (tmp_path / "half" / JSONL).unlink()
    assert problems(tmp_path / "half") == ("rows.jsonl: missing",)
    with pytest.raises(UsageError, match="build the set again"):
        read_rows(tmp_path / "half")
    with pytest.raises(UsageError, match="no row is left"):
        a_set(tmp_path / "empty", Built((), {"solution": 2}, {}), made[1])


def test_the_report_counts_strata(made: tuple[Built, Front]) -> None:
    tables = {table.title: table for table in report(made[0].rows, {"duplicate": 2}, {"mined": 8})}
    crossed = tables["Rows by task and kind"]
    assert crossed.columns == ("", "compile", "hang", "hazard", "numerical", "all")
    assert crossed.rows[0] == ("ptxgym/Gemm-H100-v1 bias train", "1", "1", "1", "5", "8")
    turns = tables["Rows by turn and kind"]
    assert [(row[0], row[-1]) for row in turns.rows] == [
        ("turn 1", "3"),
        ("turn 2", "3"),
        ("turn 3", "2"),
        ("all", "8"),
    ]
    assert turns.rows[1] == ("turn 2", "1", "1", "0", "1", "3")
    assert tables["Left out"].rows == (("duplicate", "2"),)


@pytest.mark.parametrize("name", ["default", "balanced", "paper"])
def test_recipes_load(name: str) -> None:
    recipe = load_fixit_recipe(name)
    assert recipe.name == name
    assert ("eval" in recipe.mine.splits) == (name == "paper")


def test_recipes_say_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('summary = "x"\n[mine]\nper_tsk = 3\n')
    with pytest.raises(UsageError, match="per_tsk"):
        load_fixit_recipe(str(path))
    with pytest.raises(UsageError, match="did you mean 'balanced'"):
        load_fixit_recipe("balance")
