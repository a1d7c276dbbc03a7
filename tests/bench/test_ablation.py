"""The knowledge ablation, end to end: three arms whose prompts differ by exactly the parts that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxgym.bench.metrics import cell, grouped, trajectories
from ptxgym.bench.recipe import Recipe, load_recipe
from ptxgym.bench.session import Sweep
from ptxgym.bench.tables import tables
from ptxgym.envs import load_env
from ptxgym.errors import UsageError
from ptxgym.knowledge import render_knowledge
from ptxgym.store.reader import StoredRun
from tests.agent.server import Say, ScriptedServer

ARMS = {"parameters": ("parameters",), "templates": ("templates",), "contract": ("contract", "self_audit")}
"""What each arm adds to the one before."""


def shortened(url: str) -> Recipe:
    """The shipped recipe with one trajectory of two turns, and without anchors: their kernels take a while."""
    recipe = load_recipe("ablation").with_settings(
        [("model.base_url", url), ("model.model", "scripted-1"), ("model.api_key_env", "")]
    )
    agents = tuple(agent for agent in recipe.agents if not agent.anchor)
    return recipe.model_copy(update={"agents": agents, "trajectories": 1, "turns": 2, "device": "emulator"})


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Sweep, StoredRun, int]:
    with ScriptedServer(lambda body: Say("I need to think about this.")) as server:
        recipe = shortened(server.url)
        sweep = Sweep(recipe, tmp_path_factory.mktemp("ablation") / "run")
        return recipe, sweep, sweep.play(), len(server.requests)


def openings(stored: StoredRun) -> dict[str, tuple[str, ...]]:
    """The messages before the first turn, by arm."""
    arms = {episode.id: episode.arm for episode in stored.episodes}
    return {
        arms[turn.episode]: tuple(each.content for each in turn.messages) for turn in stored.turns if turn.turn == 1
    }


def test_it_runs_and_every_arm_is_in_the_tables(played: tuple[Recipe, Sweep, StoredRun, int]) -> None:
    recipe, sweep, stored, requests = played
    assert [one.identity.arm for one in sweep.planned] == list(ARMS)
    assert requests == len(stored.turns) == 3 * 2
    found = trajectories(stored)
    for (arm,), group in grouped(found, lambda one: (one.arm,)).items():
        assert arm in ARMS
        assert cell(group, (1, 2)).failures == {"no_code": 2}
    rows = tables(recipe, found)[0].rows
    assert [row[1] for row in rows] == list(ARMS)
    assert len(set(stored.record.prompts_sha256.values())) == 3


def test_prompts_differ_by_exactly_the_parts_named(played: tuple[Recipe, Sweep, StoredRun, int]) -> None:
    _, _, stored, _ = played
    env, texts = load_env("PTX-AttnBwd-H100"), openings(stored)
    before, parts = None, ()
    for arm, added in ARMS.items():
        parts += added
        sections = dict(render_knowledge(env.arch, parts, env.task))
        assert set(sections) == set(parts) and all(sections.values())
        system, user = texts[arm]
        without = user
        for part in added:
            assert without.count(sections[part]) == 1
            without = without.replace(f"\n\n{sections[part].rstrip()}", "", 1)
        if before is not None:
            assert (system, without) == before
        assert stored.record.canary in system
        before = (system, user)


def test_a_run_goes_on_only_as_what_it_is(played: tuple[Recipe, Sweep, StoredRun, int]) -> None:
    recipe, sweep, stored, _ = played
    with pytest.raises(UsageError, match=r"holds a run already; go on with --resume"):
        Sweep(recipe, sweep.folder)
    again = Sweep(recipe, sweep.folder, resume=True)
    assert again.left() == ()
    assert again.play().turns == stored.turns
    with pytest.raises(UsageError, match=r"would mix two sweeps: recipe: arms, turns"):
        Sweep(recipe.model_copy(update={"turns": 3, "arms": recipe.arms[:2]}), sweep.folder, resume=True)
    (sweep.folder / "secret").write_text("another one")
    with pytest.raises(UsageError, match="the secret is another one"):
        Sweep(recipe, sweep.folder, resume=True)


def test_resume_without_a_run_begins_one(tmp_path: Path) -> None:
    sweep = Sweep(shortened("http://localhost:9/v1"), tmp_path / "new", resume=True)
    assert len(sweep.left()) == 3
