"""Knowledge packs: composition, prompts that differ by the parts named, sizes, a linter that finds faults."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from ptxgym import content
from ptxgym.env import PROMPT_BYTES, KernelEnv
from ptxgym.envs import env_names, load_env
from ptxgym.episode import Episode
from ptxgym.errors import ContentError, UnknownNameError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.knowledge import (
    PACK_TOKENS,
    PARTS,
    Pack,
    estimate_tokens,
    expand,
    load_pack,
    parse_parts,
    render_knowledge,
    render_part,
    template_text,
)
from ptxgym.knowledge_lint import function_names, problems
from ptxgym.prompt import render_prompt
from ptxgym.submission import MAX_SOURCE_BYTES
from tests.conftest import CHECKOUT
from tests.scripted import ScriptedDevice

PACKS = tuple(content.find("knowledge"))
ARMS = [
    (path.stem, arm["name"], tuple(arm.get("knowledge", ())))
    for path in sorted((CHECKOUT / "configs").glob("*.toml"))
    for arm in tomllib.loads(path.read_text()).get("arms", ())
]


# ---- names


def test_names_keep_one_order_and_all_stands_for_every_part() -> None:
    assert expand(("contract", "parameters", "contract")) == ("parameters", "contract")
    assert expand(["all"]) == expand(["debugging", "all"]) == PARTS
    assert parse_parts(" contract, parameters,") == ("parameters", "contract")
    assert expand(()) == ()


def test_unknown_names_suggest_and_a_text_is_no_list() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'templates'"):
        expand(["template"])
    with pytest.raises(UsageError, match="a list of names"):
        expand("parameters")
    with pytest.raises(UsageError, match="did you mean 'recipes'"):
        load_env("PTX-Gemm-H100").override(knowledge=["recipe"])


@pytest.mark.parametrize("arch", PACKS)
def test_every_pack_has_every_part_and_every_architecture_a_pack(arch: str) -> None:
    assert {part.name for part in load_pack(arch).parts} == set(PARTS)
    assert {load_env(name).arch for name in env_names()} == set(PACKS)


# ---- prompts


@pytest.mark.parametrize("env", env_names())
def test_prompt_grows_by_exactly_the_sections_of_the_parts(env: str) -> None:
    config = load_env(env)
    plain = render_prompt(config)
    assert config.knowledge == () and load_pack(config.arch).part("parameters").title not in plain
    for name in PARTS:
        ((_, section),) = render_knowledge(config.arch, (name,), config.task)
        assert section.startswith(f"## {load_pack(config.arch).part(name).title}\n\n")
        assert render_prompt(config.override(knowledge=(name,))) == f"{plain}\n{section}\n"
    order = [part.name for part in load_pack(config.arch).parts]
    sections = render_knowledge(config.arch, PARTS, config.task)
    assert [name for name, _ in sections] == order
    whole = render_prompt(config.override(knowledge=("all",)))
    assert whole == plain + "".join(f"\n{section}\n" for _, section in sections)
    assert len(whole.encode()) < PROMPT_BYTES - MAX_SOURCE_BYTES


@pytest.mark.parametrize(("recipe", "arm", "names"), ARMS, ids=lambda value: str(value))
def test_arms_of_the_recipes_differ_by_the_parts_named(recipe: str, arm: str, names: tuple[str, ...]) -> None:
    for env in tomllib.loads((CHECKOUT / "configs" / f"{recipe}.toml").read_text())["envs"]:
        config = load_env(env if isinstance(env, str) else env["id"])
        prompt = render_prompt(config.override(knowledge=names))
        titles = [load_pack(config.arch).part(name).title for name in expand(names)]
        assert {t for t in re.findall(r"^## (.+)$", prompt, re.M) if t in _titles(config.arch)} == set(titles)
        for _, section in render_knowledge(config.arch, names, config.task):
            assert prompt.count(section) == 1
            prompt = prompt.replace(f"\n{section}\n", "")
        assert prompt == render_prompt(config)


def test_the_ablation_of_the_paper_adds_parts_arm_by_arm() -> None:
    arms = [set(expand(names)) for recipe, _, names in ARMS if recipe == "ablation"]
    assert arms[0] == {"parameters"} and len(arms) == 3
    assert all(smaller < larger for smaller, larger in pairwise(arms))


def _titles(arch: str) -> set[str]:
    return {part.title for part in load_pack(arch).parts}


def test_a_recipe_is_the_own_operators_and_kernels_given_stand_last() -> None:
    config = load_env("PTX-AttnFwdCausal-H100").override(knowledge=("recipes",))
    ((_, section),) = render_knowledge("h100", ("recipes",), "attn_fwd_causal")
    assert "softmax" in section and section in render_prompt(config)
    assert render_part(load_pack("h100"), "recipes", "gemm") != section
    assert render_part(load_pack("h100"), "recipes", "another_task") == ""
    assert render_knowledge("h100", ("recipes",), "another_task") == ()
    text = render_prompt(config, init="int start;")
    assert text.index(section) < text.index("## Start from this kernel")


@pytest.fixture
def scripted() -> Iterator[Evaluator]:
    with Evaluator(ScriptedDevice(), random_schedules=1) as shared:
        yield shared


def test_episodes_and_environments_take_parts(scripted: Evaluator) -> None:
    config = load_env("PTX-Gemm-H100").override(knowledge=("parameters", "contract"))
    wanted = render_prompt(config)
    assert Episode("PTX-Gemm-H100", scripted, knowledge=["contract", "parameters"]).prompt() == wanted
    assert Episode(config, scripted).prompt() == wanted
    assert Episode(config, scripted, knowledge=()).prompt() == render_prompt(load_env("PTX-Gemm-H100"))
    env = KernelEnv("PTX-Gemm-H100", evaluator=scripted)
    observation, info = env.reset(options={"knowledge": ["parameters", "contract"]})
    assert observation["prompt"] == wanted and info["options"] == {"knowledge": ["parameters", "contract"]}
    assert env.observation_space.contains(observation)
    assert env.reset()[0]["prompt"] == render_prompt(load_env("PTX-Gemm-H100"))
    whole = KernelEnv("PTX-Gemm-H100", evaluator=scripted, knowledge=["all"])
    observation, _ = whole.reset()
    assert observation["prompt"] == render_prompt(load_env("PTX-Gemm-H100").override(knowledge=("all",)))


# ---- sizes


@pytest.mark.parametrize("arch", PACKS)
def test_a_whole_pack_fits(arch: str) -> None:
    pack = load_pack(arch)
    tokens = sum(estimate_tokens(render_part(pack, name, None)) for name in PARTS)
    assert 5_000 < tokens < PACK_TOKENS


SAMPLES = {  # tokens by o200k_base, counted once with a tokenizer
    "Each warp of the producer waits until the slot is free, and then issues the next copy.": 19,
    "__device__ __forceinline__ uint32_t smem_address(const void* pointer) {\n  return 0;\n}\n": 25,
    "| L2 | 50 MB (H100), 60 MiB (H200) | NVIDIA H100 datasheet; read on an H200 |\n": 32,
    'asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");\n': 22,
}


def test_the_estimate_is_near_a_real_tokenizer() -> None:
    for text, tokens in SAMPLES.items():
        assert estimate_tokens(text) == pytest.approx(tokens, rel=0.35), text
    total = "".join(SAMPLES)
    assert estimate_tokens(total) == pytest.approx(sum(SAMPLES.values()), rel=0.15)
    assert estimate_tokens("") == 0


def test_the_token_table_of_the_docs_is_current() -> None:
    rows = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \| ([\d,]+) \| ([\d,]+) \|$", _docs(), re.M)
    assert {name for name, *_ in rows} == set(PARTS)
    for name, task, *cells in rows:
        for arch, cell in zip(("h100", "b200"), cells, strict=True):
            tokens = estimate_tokens(render_part(load_pack(arch), name, task or None))
            assert int(cell.replace(",", "")) == pytest.approx(tokens, rel=0.05), (arch, name, task)


def _docs() -> str:
    return (CHECKOUT / "docs" / "knowledge.md").read_text()


# ---- what a pack may say


@pytest.mark.parametrize("arch", PACKS)
def test_shipped_packs_are_clean(arch: str) -> None:
    assert problems(load_pack(arch)) == ()


@pytest.mark.parametrize("arch", PACKS)
def test_every_template_function_is_called_by_a_test_kernel(arch: str) -> None:
    folders = (Path(__file__).parent / name for name in (arch, "common"))
    kernels = "".join(path.read_text() for folder in folders for path in folder.glob("*.cu"))
    called = set(re.findall(r"\b(\w+)(?:<[^;{}()]*>)?\(", kernels))
    # Functions that only stand inside of others are executed with them.
    inside = set(re.findall(r"\b(\w+)(?:<[^;{}()]*>)?\(", _bodies(template_text(load_pack(arch)), called)))
    assert function_names(load_pack(arch)) - called - inside == set()


def _bodies(text: str, names: set[str]) -> str:
    functions = re.split(r"\n\n+", text)
    return "".join(f for f in functions if any(re.search(rf"\b{name}\(", f.split("{")[0]) for name in names))


def runs_of_eight(text: str) -> set[tuple[str, ...]]:
    """Every eight lines in a row, as words alone."""
    kept = [line for raw in text.splitlines() if (line := re.sub(r"\W+", "", raw))]
    return {tuple(kept[at : at + 8]) for at in range(len(kept) - 7)}


@pytest.mark.parametrize("arch", PACKS)
def test_templates_hold_no_text_of_a_solution(arch: str) -> None:
    solutions = sorted(CHECKOUT.glob("tasks/**/solutions/**/*.cu"))
    theirs = {run for solution in solutions for run in runs_of_eight(solution.read_text())}
    text = template_text(load_pack(arch))
    assert len(solutions) > 10 and runs_of_eight(text) & theirs == set()
    some = solutions[0].read_text().splitlines()
    assert runs_of_eight("\n".join([text, *(f"  {line}" for line in some[:30])])) & theirs, "a copy is found"


def test_packs_hold_no_kernel_file() -> None:
    assert not list((CHECKOUT / "knowledge").rglob("*.cu"))
    assert "oracle" not in "".join(path.read_text() for path in (CHECKOUT / "knowledge").glob("*/**/*.md"))


# ---- the linter, tripped

GOOD = {
    "knowledge.toml": 'title = "T"\n[[parts]]\nname = "parameters"\ntitle = "P"\nfiles = ["p.md"]\n'
    '[[parts]]\nname = "templates"\ntitle = "F"\nfiles = ["t.cuh"]\n',
    "p.md": "| what | figure | source |\n| --- | --- | --- |\n| SMs | 132 | whitepaper |\n\n- 2 of them [derived]\n"
    "\nCall `twice(x)` of `t.cuh`, `cudaFuncSetAttribute(…)` or `__syncwarp()`; see `smem.race`.\n",
    "t.cuh": "#pragma once\n// Twice x; any thread.\n__device__ int twice(int x) { return 2 * x; }\n",
}
Edit = tuple[str, str, str]
BAD: list[tuple[Edit, str]] = [
    (("p.md", "`twice(x)`", "`thrice(x)`"), "thrice() is no function"),
    (("p.md", "`twice(x)`", "thrice()"), "thrice() is no function"),
    (("p.md", "cudaFuncSetAttribute", "cudaFuncSetAttributes2"), "cudaFuncSetAttributes2() is no function"),
    (("p.md", "`t.cuh`", "`u.cuh`"), "`u.cuh` is no file"),
    (("p.md", "`smem.race`", "`smem.raze`"), "`smem.raze` is no code"),
    (("p.md", "| 132 | whitepaper |", "| 132 | |"), "the row 'SMs' has a figure without a source"),
    (("p.md", " [derived]", ""), "the item '2 of them' has a figure"),
    (("p.md", "| what", "# Title\n\n| what"), "begin with ###"),
    (("t.cuh", "// Twice x; any thread.\n", ""), "twice() has no comment"),
    (("t.cuh", "any thread", "see thrice()"), "thrice() is no function"),
    (("t.cuh", "__device__ int", "__global__ void"), "never a kernel"),
    (("p.md", "Call", "word " * 26_000 + "Call"), "it must stay under 25,000"),
]


@pytest.fixture
def pack(tmp_path: Path) -> Callable[..., Pack]:
    def make(file: str = "", old: str = "", new: str = "") -> Pack:
        folder = tmp_path / "h100"
        folder.mkdir(exist_ok=True)
        for name, text in GOOD.items():
            assert name != file or old in text
            (folder / name).write_text(text.replace(old, new) if name == file else text)
        return content.load(folder / "knowledge.toml", Pack, name="h100", folder=folder)

    return make


def test_linter_accepts_a_good_pack(pack: Callable[..., Pack]) -> None:
    assert problems(pack()) == ()


@pytest.mark.parametrize(("edit", "message"), BAD, ids=[message for _, message in BAD])
def test_linter_finds(pack: Callable[..., Pack], edit: Edit, message: str) -> None:
    found = problems(pack(*edit))
    assert any(message in problem for problem in found), found


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("knowledge.toml", 'files = ["p.md"]', 'files = ["p.md"]\ntasks = {gemm = "p.md"}'), "either files or tasks"),
        (("knowledge.toml", 'name = "templates"', 'name = "parameters"'), "named twice"),
        (("knowledge.toml", 'name = "templates"', 'name = "template"'), "parts.1.name"),
        (("knowledge.toml", 'title = "T"', 'titel = "T"'), "did you mean 'title'"),
    ],
)
def test_malformed_packs_name_the_key(pack: Callable[..., Pack], edit: Edit, message: str) -> None:
    with pytest.raises(ContentError, match=re.escape(message)):
        pack(*edit)


def test_files_outside_of_the_packs_and_missing_ones_are_refused(pack: Callable[..., Pack], tmp_path: Path) -> None:
    (tmp_path.parent / "secret.md").write_text("an answer")
    outside = pack("knowledge.toml", "p.md", "../../secret.md")
    with pytest.raises(ContentError, match="lies outside"):
        render_part(outside, "parameters", None)
    with pytest.raises(ContentError, match=r"missing\.md"):
        render_part(pack("knowledge.toml", "p.md", "missing.md"), "parameters", None)
    with pytest.raises(UnknownNameError, match="part of knowledge pack h100"):
        pack().part("contract")
