"""The page of a run that the benchmark made, with a real endpoint and kernels that were executed; killed once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ptxgym.report import write_report
from ptxgym.store.reader import read_run
from tests.agent.server import ScriptedServer
from tests.bench.killing import RECIPE, finished, kill, scripted, started
from tests.report.reading import Page


def played(folder: Path, envs: Sequence[str], kills: Sequence[int]) -> Path:
    """Play the recipe of the kill test on `envs`, killed at these numbers of turns; return the run's folder."""
    answers = folder / "answers"
    answers.mkdir(parents=True)
    for number in (1, 2, 3):
        (answers / f"{number}.md").write_text("First I look at the shapes. No file yet.\n")
    with ScriptedServer(scripted) as server:
        recipe = folder / "killed.toml"
        recipe.write_text(RECIPE.format(envs=json.dumps(list(envs)), answers=answers, url=server.url))
        resume: tuple[str, ...] = ()
        for turns in kills:
            kill(started(recipe, folder / "run", *resume), folder / "run", turns)
            resume = ("--resume",)
        finished(started(recipe, folder / "run", *resume))
    return folder / "run"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("real")
    run = played(folder, ("PTX-Gemm-H100",), (2,))
    return run, write_report([run], folder / "report.html")


def test_front_matter_of_a_killed_run_holds_and_its_numbers_are_whole(real: tuple[Path, Path]) -> None:
    run, file = real
    text = file.read_text()
    episodes = len(read_run(run).episodes)
    assert "recipe on record has this hash" in text and "fixed before the first turn" in text
    assert f"in {episodes} of {episodes} first messages" in text
    rows = {row[0]: row for row in Page(text).parts("by-task")["ptxgym/Gemm-H100-v1"]}
    assert list(rows) == ["oracle anchor", "naive anchor", "replay", "model"]
    # within 1 and 3 turns right, then on target instructions: see `scripted`
    assert [value.split()[0] for value in rows["model"][1:5]] == ["0", "100", "0", "100"]
    assert [value.split()[0] for value in rows["replay"][1:5]] == ["0", "0", "0", "0"]
    assert [value.split()[0] for value in rows["naive anchor"][1:5]] == ["100", "100", "0", "0"]


@pytest.mark.browser
def test_it_opens_without_an_error_and_steps_through_the_model_s_turns(browser: Any, real: tuple[Path, Path]) -> None:
    page = browser.new_page()
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.goto(real[1].as_uri())
    page.wait_for_selector(".steps button")
    page.locator("#list li", has_text="model #1").click()
    page.wait_for_function("document.querySelector('#detail h3').textContent.startsWith('model')")
    for number, (score, families) in enumerate((("0.00", ()), ("0.20", ("fma",)), ("0.50", ("wgmma", "tma")))):
        page.locator(".steps button").nth(number).click()
        assert page.locator(".steps button[aria-current='true'] b").inner_text() == score
        shown = page.locator(".histogram .bars span:nth-child(3n+1)").all_inner_texts()
        assert set(families) <= set(shown), shown
    for figure in page.locator("figure.chart").all():
        assert figure.locator("[class*='role-mark'] path").count() > 1
    assert told == []
    page.close()


if __name__ == "__main__":
    os.environ.setdefault("PTXGYM_SECRET", "of the killed run")
    from ptxgym.envs import env_names

    where = Path(sys.argv[1])
    sys.stdout.write(f"{write_report([played(where, env_names(), (12, 35))], where / 'report.html')}\n")
