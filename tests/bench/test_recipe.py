"""Recipes: what they may say, what follows from them, and what is fixed before the first answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ptxgym import content
from ptxgym.agent import Agent, Prompting, Reply, TurnContext, load_agent
from ptxgym.bench.recipe import Recipe, load_recipe
from ptxgym.bench.session import Sweep
from ptxgym.bench.sweep import differences, front_matter, plan, playable
from ptxgym.errors import ContentError, UnknownNameError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.store.records import Message
from tests.conftest import CHECKOUT

BASIC: dict[str, Any] = {
    "name": "basic",
    "summary": "for tests",
    "envs": ("PTX-Gemm-H100", {"id": "PTX-AttnFwd-H100", "variants": ("base", "d64")}),
    "agents": ("naive", {"use": "oracle", "anchor": True, "trajectories": 1, "turns": 1, "arms": ("bare",)}),
    "arms": ({"name": "bare"}, {"name": "told", "knowledge": ("parameters", "contract")}),
    "trajectories": 3,
    "turns": 4,
    "device": "emulator",
}


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate({**BASIC, **changes})


def front(found: Recipe, secret: str = "s", **agents: Agent) -> Any:
    made = {agent.label: load_agent(agent.use, **agent.settings) for agent in found.agents}
    with Evaluator("emulator", secret=secret) as evaluator:
        return front_matter(found, {**made, **agents}, evaluator, secret)


def test_plan_is_the_product_and_every_part_of_it_is_balanced() -> None:
    planned = plan(recipe(), "canary")
    ids = [one.id for one in planned]
    assert len(set(ids)) == len(ids) == 3 * (2 * 3) + 3 * 1
    assert Counter(one.label for one in planned) == {"naive": 18, "oracle": 3}
    assert ids[0] == "ptxgym/Gemm-H100-v1/base/naive/bare/0"
    assert "ptxgym/AttnFwd-H100-v1/d64/naive/told/2" in ids
    assert not [name for name in ids if "oracle/told" in name or name.endswith("oracle/bare/1")]
    assert [one.identity.trajectory for one in planned] == sorted(one.identity.trajectory for one in planned)
    assert {one.identity.canary for one in planned} == {"canary"}
    told = next(one for one in planned if one.identity.arm == "told")
    assert (told.env.turns, told.env.knowledge) == (4, ("parameters", "contract"))
    assert next(one for one in planned if one.label == "oracle").env.turns == 1


@pytest.mark.parametrize(
    ("envs", "said"),
    [
        (("PTX-Gemm-H100", "ptxgym/Gemm-H100-v1"), "as PTX-Gemm-H100 and as ptxgym/Gemm-H100-v1"),
        (({"id": "PTX-AttnFwd-H100", "variants": ("d64", "base", "d64")},), "variant d64, is there twice"),
        (("PTX-AttnFwd-H100", {"id": "ptxgym/AttnFwd-H100-v1", "variants": ("d64", "base")}), "variant base, is there"),
    ],
)
def test_an_environment_under_two_names_is_refused(envs: tuple[Any, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(recipe(envs=envs))
    apart = ("PTX-AttnFwd-H100", {"id": "PTX-AttnBwd-H100", "variants": ("base", "d64")})
    assert len({one.id for one in plan(recipe(envs=apart))}) == 3 * (2 * 3) + 3


def test_seeds_are_shared_by_arms_and_agents_and_by_nothing_else() -> None:
    seeds: dict[tuple[str, str, int], set[int]] = {}
    for one in plan(recipe()):
        identity = one.identity
        seeds.setdefault((identity.env, identity.variant, identity.trajectory), set()).add(identity.seed)
    assert all(len(found) == 1 for found in seeds.values())
    every = {seed for found in seeds.values() for seed in found}
    assert len(every) == len(seeds) == 9
    assert all(0 <= seed < 2**31 for seed in every)
    assert plan(recipe(seed=1))[0].identity.seed != plan(recipe())[0].identity.seed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"envs": ()}, "envs"),
        ({"envs": ("PTX-Gemm-H100", "PTX-Gemm-H100")}, "is there twice"),
        ({"agents": ("naive", "naive")}, "'naive' is there twice"),
        ({"agents": ({"use": "naive", "arms": ("tolt",)},)}, "did you mean 'told'"),
        ({"agents": ({"use": "naive", "turns": 9},)}, "has 9 turns, the sweep 4"),
        ({"agents": ({"use": "naive", "label": "a/b"},)}, "pattern"),
        ({"stop": "soon"}, "stop must be"),
        ({"trajectories": 0}, "greater than or equal to 1"),
        ({"limits": {"builds": 0}}, "greater than or equal to 1"),
        ({"transfers": ({"before": "PTX-Gemm-H100", "after": "PTX-Gemm-B200"},)}, "environment of a transfer"),
        ({"trajectoris": 3}, "Extra inputs"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_said(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        recipe(**changes)


def test_recipe_files_are_named_by_file_and_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('summary = "s"\nenvs = ["PTX-Gemm-H100"]\nagents = ["naive"]\ntrajectorys = 1\n')
    with pytest.raises(ContentError, match=r"mine\.toml: trajectories: missing; .*did you mean 'trajectories'"):
        load_recipe(path)
    path.write_text('summary = "s"\nenvs = ["PTX-Gemm-H100"]\nagents = ["naive"]\ntrajectories = 1\n')
    assert load_recipe(path).name == "mine"
    with pytest.raises(UnknownNameError, match="did you mean 'ablation'"):
        load_recipe("ablatoin")
    for other in (tmp_path / "mine.cu", "mine.cu", ".", tmp_path):
        with pytest.raises(UsageError, match=r"is no recipe: that is a \.toml file, or a name"):
            load_recipe(other)
    with pytest.raises(ContentError, match=r"none\.toml cannot be read: No such file or directory$"):
        load_recipe(tmp_path / "none.toml")
    path.write_bytes(b"\xe6\xff")
    with pytest.raises(ContentError, match=r"mine\.toml is no text in UTF-8"):
        load_recipe(path)


def test_settings_go_to_the_agent_with_the_label() -> None:
    found = recipe(agents=("openai", {"use": "openai", "label": "openai.2"})).with_settings(
        [("openai.model", "m"), ("openai.2.sampling.temperature", 0.5)]
    )
    assert [agent.settings for agent in found.agents] == [{"model": "m"}, {"sampling.temperature": 0.5}]
    with pytest.raises(UsageError, match="begin with the label of an agent: naive, oracle"):
        recipe().with_settings([("model", "m")])


@pytest.mark.parametrize("name", [path.stem for path in sorted((CHECKOUT / "configs").glob("*.toml"))])
def test_shipped_recipes_plan_and_have_anchors_in_every_table(name: str) -> None:
    found = load_recipe(name)
    planned = plan(found)
    assert {"oracle", "naive"} <= found.anchors
    assert len({one.id for one in planned}) == len(planned)
    assert {one.identity.env for one in planned if one.label == "oracle"} == {one.identity.env for one in planned}
    assert content.find("configs")[name].read_text().startswith("# ")


def test_shipped_sweeps_have_the_published_size() -> None:
    assert len([one for one in plan(load_recipe("main")) if one.label == "model"]) == 10 * 12
    ablation = [one for one in plan(load_recipe("ablation")) if one.label == "model"]
    assert Counter(one.identity.arm for one in ablation) == {"parameters": 12, "templates": 12, "contract": 12}
    assert {one.env.turns for one in ablation} == {8}
    assert len(load_recipe("transfer").transfers) == 5


def test_front_matter_fixes_everything_that_decides_a_result_and_hides_the_secret() -> None:
    before = front(recipe())
    assert before.device == "emulator"
    assert before.devices == {"h100": "emulator"}
    base, variant = ("Gemm-H100-v1/base", "AttnFwd-H100-v1/base"), "AttnFwd-H100-v1/d64"
    assert set(before.prompts_sha256) == {
        *(f"ptxgym/{env}/naive/{arm}" for env in (*base, variant) for arm in ("bare", "told")),
        *(f"ptxgym/{env}/oracle/bare" for env in base),
    }  # fmt: skip
    hashes = before.prompts_sha256
    assert len(set(hashes.values())) == 8, "the oracle plays 1 turn and is told so"
    assert {"ptxgym", "compiler", "emulator", "judge", "recorder"} <= set(before.versions)
    again = front(recipe(limits={"builds": 7}))
    assert (again.sweep_sha256, again.canary) == (before.sweep_sha256, before.canary)
    assert differences(before, again) == []
    for changed in (recipe(seed=1), recipe(turns=5), recipe(trajectories=2), recipe(stop="target_ok")):
        assert front(changed).sweep_sha256 != before.sweep_sha256
    other = front(recipe(), secret="another secret")
    assert other.canary != before.canary
    assert "another secret" not in other.model_dump_json()
    assert differences(before, other) == [
        "the secret is another one (it belongs into the file `secret` of the run, or into PTXGYM_SECRET)"
    ]


def test_prompts_are_hashed_as_they_are_sent(tmp_path: Path) -> None:
    from ptxgym.agent.loop import prompt_sha256
    from ptxgym.store.records import CANARY

    agents = ({"use": "openai", "settings": {"api_key_env": "", "model": "m", "base_url": "http://localhost:9/v1"}},)
    found = recipe(agents=agents, envs=("PTX-Gemm-H100",), trajectories=1, turns=1)
    sweep = Sweep(found, tmp_path / "run")
    seen: list[tuple[Message, ...]] = []

    async def reply(messages: Sequence[Message], turn: TurnContext, on_text: Callable[[str], None]) -> Reply:
        seen.append(tuple(messages))
        return Reply("no kernel")

    (agent,) = sweep.agents.values()
    agent.reply = reply  # type: ignore[method-assign]
    sweep.play()
    record = sweep.record
    sent = {
        prompt_sha256(tuple(m.model_copy(update={"content": m.content.replace(record.canary, CANARY)}) for m in each))
        for each in seen
    }
    assert sent == set(record.prompts_sha256.values()) and len(sent) == 2
    other = recipe(agents=agents, envs=("PTX-Gemm-H100",), trajectories=1, turns=1)
    with Evaluator("emulator", secret="s") as evaluator:
        made = {"openai": load_agent("openai", **agents[0]["settings"])}
        system = {**made["openai"].prompting.templates, "system": "Say {{ turns }}."}
        made["openai"].prompting = Prompting("full", system)  # type: ignore[misc]
        changed = front_matter(other, made, evaluator, "s").prompts_sha256
    assert changed.keys() == record.prompts_sha256.keys() and not sent & set(changed.values()), "templates count"


def test_an_anchor_is_left_out_where_it_has_no_kernel_and_another_agent_is_refused() -> None:
    agents = {"oracle": load_agent("oracle"), "naive": load_agent("naive")}
    found = playable(plan(recipe()), agents, frozenset({"oracle"}))
    played = {(one.label, one.identity.variant) for one in found}
    assert played == {("naive", "base"), ("naive", "d64"), ("oracle", "base")}
    with pytest.raises(UsageError, match=r"agent oracle cannot play ptxgym/AttnFwd-H100-v1, variant d64"):
        playable(plan(recipe()), agents, frozenset())


def test_differences_name_what_changed() -> None:
    anchor = ({"use": "naive", "anchor": True},)
    before = front(recipe(agents=anchor))
    assert differences(before, front(recipe(agents=anchor, turns=5))) == [
        "recipe: turns",
        "prompts: " + ", ".join(sorted(before.prompts_sha256)),
    ]
    other = front(recipe(agents=anchor), naive=load_agent("oracle"))
    gone = "prompts: " + ", ".join(f"ptxgym/AttnFwd-H100-v1/d64/naive/{arm}" for arm in ("bare", "told"))
    assert differences(before, other) == ["agents: naive", gone]
    newer = before.model_copy(update={"versions": {**before.versions, "judge": "99"}, "device": "NVIDIA H200"})
    assert differences(before, newer) == [
        f"judge was {before.versions['judge']} and is 99",
        "device was emulator and is NVIDIA H200",
    ]


def test_an_agent_may_be_given_more_patience_and_nothing_else() -> None:
    def asked(**settings: Any) -> Any:
        agents = ({"use": "openai", "settings": {"api_key_env": "", "model": "m", **settings}},)
        return front(recipe(agents=agents))

    before = asked()
    assert differences(before, asked(**{"limits.retries": 50, "limits.timeout_s": 9000})) == []
    assert differences(before, asked(**{"sampling.temperature": 0.5})) == ["recipe: agents", "agents: openai"]
