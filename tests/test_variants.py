"""Variants of tasks: how they are read, derived, told apart, and asked for."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from ptxgym import content
from ptxgym.env import KernelEnv
from ptxgym.envs import env_names, load_env
from ptxgym.episode import Episode
from ptxgym.errors import ContentError, UnknownNameError
from ptxgym.evaluator import Evaluator
from ptxgym.expression import evaluate
from ptxgym.judge import numbers
from ptxgym.judge.conditions import conditions
from ptxgym.judge.correctness import region
from ptxgym.prompt import render_prompt
from ptxgym.rows import Row, task_rows
from ptxgym.task import BASE, Task, Tensor, load_task
from ptxgym.variants import FILE, Variant, load_variant, traits_of, variants_of
from ptxgym.verdict import Status

TASKS = ("gemm", "attn_fwd", "attn_fwd_causal", "attn_bwd", "attn_bwd_causal")
GEMM = content.builtin_root() / "tasks" / "gemm"


def everything() -> Iterator[tuple[Task, Variant]]:
    """Yield every variant of every task, derived."""
    for name in TASKS:
        for variant in variants_of(load_task(name)):
            yield load_variant(name, variant.name), variant


# What the tasks offer


def test_there_are_enough_of_them_and_the_tasks_themselves_are_held_out() -> None:
    labels = [task.label for task, _ in everything()]
    assert len(labels) == len(set(labels)) >= 200
    splits = {task.label: variant.split for task, variant in everything()}
    assert all(splits[name] == "eval" for name in TASKS)
    assert sum(split == "train" for split in splits.values()) >= 100
    assert sum(split == "eval" for split in splits.values()) >= 30


@pytest.mark.parametrize("name", TASKS)
def test_what_is_held_out_combines_traits_that_are_trained_on(name: str) -> None:
    known = variants_of(load_task(name))
    trained = {trait for variant in known if variant.split == "train" for trait in variant.traits}
    held_out = [variant for variant in known if variant.split == "eval" and variant.name != BASE]
    assert held_out
    for variant in held_out:
        assert len(variant.traits) > 1 and set(variant.traits) <= trained, variant.name
    assert trained == set(traits_of(load_task(name)))


def test_difficulty_sorts_what_is_easier_first() -> None:
    by_label = {task.label: variant.difficulty for task, variant in everything()}
    rising = ("gemm/k64", "gemm", "gemm/nt", "attn_fwd", "attn_fwd_causal", "attn_bwd", "attn_bwd_causal")
    assert sorted(rising, key=by_label.__getitem__) == list(rising)
    for name in ("attn_bwd", "attn_bwd_causal"):
        one_by_one = [by_label[f"{name}/{trait}"] for trait in ("dv", "dk", "dkdv")] + [by_label[name]]
        assert sorted(one_by_one) == one_by_one and len(set(one_by_one)) == 4


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_causal_attention_has_the_same_variants(direction: str) -> None:
    """Of the same traits, but for counts, titles and difficulty."""
    full, causal = load_task(f"attn_{direction}"), load_task(f"attn_{direction}_causal")
    assert [(v.name, v.split, v.difficulty + 1) for v in variants_of(full)] == [
        (v.name, v.split, v.difficulty) for v in variants_of(causal)
    ]
    for name, trait in traits_of(full).items():
        twin, own = traits_of(causal)[name], {"counts", "replace"}
        assert trait.model_dump(exclude=own) == twin.model_dump(exclude=own)
        assert [text.replace("Attention", "Causal attention") for text in trait.replace] == [*twin.replace]
        for kind, text in trait.counts.items():
            axes = {"B": 2, "H": 3, "S": 5, "D": 7}
            assert evaluate(twin.counts[kind], axes) * 10 == evaluate(text, axes) * 6  # (S + 1) ÷ 2S


def test_bytes_are_those_of_all_tensors() -> None:
    """Of the tasks, too, whose expressions are written by hand."""
    for task, variant in everything():
        axes = task.workload("emulation").axes
        assert task.moved_bytes(axes) == sum(task.sizes_bytes(axes).values()), variant.name


def test_tasks_carry_their_naive_kernel_for_every_generation_and_no_other() -> None:
    for task, variant in everything():
        assert set(task.solutions) == {"h100", "b200"}
        if variant.name != BASE:
            (naive,) = task.solutions["h100"]
            assert task.solutions["b200"] == (naive,) and task.examples == {}
            assert (naive.score, naive.coverage, naive.oracle) == (0.2, 0.0, False)


# Deriving


def test_a_layout_changes_how_a_tensor_lies_and_nothing_that_the_reference_sees() -> None:
    task = load_variant("gemm", "nt")
    assert [(t.name, t.shape, t.logical) for t in task.inputs] == [
        ("A", ("K", "M"), ("M", "K")),
        ("B", ("K", "N"), ("N", "K")),
    ]
    assert task.title == "Dense matrix product C = Aᵀ·B (BF16)" and "A[k, m] · B[k, n]" in task.summary
    stored = {name: np.arange(6 * rows, dtype=np.float32).reshape(6, rows) for name, rows in (("A", 3), ("B", 4))}
    axes = {"M": 3, "N": 4, "K": 6}
    data = {tensor.name: numbers.encode(stored[tensor.name], "bf16") for tensor in task.inputs}
    found = task.reference().reference(np, numbers.values(task.inputs, data, axes), axes)
    assert (found["C"] == np.einsum("km,kn->mn", stored["A"], stored["B"])).all()


def test_added_inputs_types_and_texts_reach_signature_and_summary() -> None:
    task = load_variant("gemm", "scale-bias-relu-residual")
    assert task.signature.declaration() == (
        'extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, const float* scale, '
        "const __nv_bfloat16* bias, const __nv_bfloat16* residual, __nv_bfloat16* C, int M, int N, int K, "
        "cudaStream_t stream)"
    )
    steps = ["- x becomes scale[n] · x", "- x becomes x + bias[n]", "- x becomes max(x, 0)"]
    assert task.summary.splitlines()[-4:] == [*steps, "- x becomes x + residual[m, n]"]
    fp32 = load_variant("gemm", "nn-fp32")
    assert "float* C" in fp32.signature.declaration() and "stored in FP32" in fp32.summary
    assert "rounded" not in fp32.summary


def test_outputs_that_are_not_wanted_take_their_inputs_and_counts_with_them() -> None:
    task = load_variant("attn_bwd", "d64-dv")
    assert task.signature.declaration() == (
        'extern "C" void run(const __nv_bfloat16* Q, const __nv_bfloat16* K, const __nv_bfloat16* dO, '
        "const float* LSE, __nv_bfloat16* dV, int B, int H, int S, int D, cudaStream_t stream)"
    )
    assert [tensor.name for tensor in task.unused] == ["V", "O"]
    axes = {"B": 1, "H": 2, "S": 128, "D": 64}
    assert task.required_multiply_adds(axes) == 2 * 2 * 128 * 128 * 64
    assert task.flops(axes) == 2 * task.required_multiply_adds(axes)
    assert task.shape_problem({**axes, "D": 128}) == "D=128 lies outside 64 … 64"
    assert all(shape["D"] == 64 for w in task.workloads.values() for shape in (w.axes, *w.hidden))
    assert "delta" not in task.summary and "dQ" not in task.summary and "D = 64" in task.title


def test_multiply_adds_of_the_gradients_are_products_of_five() -> None:
    axes = {"B": 2, "H": 3, "S": 128, "D": 128}
    product = 2 * 3 * 128 * 128 * 128
    for name, products in (("dv", 2), ("dk", 3), ("dkdv", 4), ("dq", 3), (BASE, 5)):
        assert load_variant("attn_bwd", name).required_multiply_adds(axes) == products * product
        causal = load_variant("attn_bwd_causal", name).required_multiply_adds(axes)
        assert causal == products * product * 129 // 256
    for name, products in (("lse", 1), ("o", 2), (BASE, 2)):
        assert load_variant("attn_fwd", name).required_multiply_adds(axes) == products * product
        assert load_variant("attn_fwd_causal", name).required_multiply_adds(axes) == products * product * 129 // 256


def test_base_is_the_task_and_unknown_names_suggest() -> None:
    gemm = load_task("gemm")
    assert load_variant(gemm) is gemm and load_variant("gemm", BASE) == gemm
    assert load_variant(load_variant("gemm", "nn"), "nn").variant == "nn"
    with pytest.raises(
        UnknownNameError, match=r"variant of task gemm 'nn-bais'; did you mean 'nn-bias'.*list --variants"
    ):
        load_variant("gemm", "nn-bais")
    with pytest.raises(UnknownNameError, match="did you mean 'gemm'"):
        load_variant("gmm", "nn")
    with pytest.raises(UnknownNameError, match="gemm/nn is a variant already"):
        load_variant(load_variant("gemm", "nn"), "tt")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"nn-bias",', '"nn-bais",', "variant 'nn-bais': unknown trait 'bais'; did you mean 'bias'"),
        ('"nn-bias",', '"bias-nn",', "variant 'bias-nn': its traits come in the order of the file: 'nn-bias'"),
        ('"nn-bias",', '"nn-nn-bias",', "its traits come in the order of the file: 'nn-bias'"),
        ('eval = [', 'eval = ["nn-bias",', "listed twice, in train or eval: nn-bias"),
        ("[traits.k64]", "[traits.k-64]", "a trait's name must have no '-' and not be 'base': k-64"),
        ('append = "- x becomes x + bias[n]"', "apend = 1", "traits.bias.apend"),
        ('"both contiguous along K"', '"both contiguous on K"', "'both contiguous on K' must occur once in title and"),
        ('shapes.A = ["K", "M"]', 'shapes.E = ["K", "M"]', "variant 'nn-bias': unknown tensor 'E'"),
        ('shapes.A = ["K", "M"]', 'shapes.A = ["K", "N"]', "variant 'nn-bias': logical holds M, K, not the axes"),
        ("{ BIAS = 1 }", "{ A_KM = 2 }", "traits disagree on defines.A_KM; 'bias' has 2"),
        ('name = "bias"', 'name = "C"', "argument names must differ; repeated: C"),
        ("difficulty = 2\n\ntrain", "dificulty = 2\n\ntrain", "unknown key 'dificulty'; did you mean 'difficulty'"),
        ("{ BIAS = 1 }", "{ BIAS = 1 }\naxes.M = { multiple_of = 96, max = 9999 }", "M=8192 is not a multiple of 96"),
        ('summary = "a bias per column"', 'summary = "a"\noutputs = ["D"]', "unknown tensor 'D'"),
    ],
)  # fmt: skip
def test_malformed_variants_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, complaint: str
) -> None:
    folder = tmp_path / "tasks" / "mine"
    shutil.copytree(GEMM, folder)
    task = (folder / "task.toml").read_text()
    (folder / "task.toml").write_text(task.replace('name = "gemm"', 'name = "mine"'))
    text = (folder / FILE).read_text()
    assert old in text
    (folder / FILE).write_text(text.replace(old, new, 1))
    monkeypatch.setenv(content.VARIABLE, str(tmp_path))
    with pytest.raises((ContentError, ValueError)) as caught:
        load_variant("mine", "nn-bias")
    assert complaint in str(caught.value)


def test_a_task_without_the_file_is_its_only_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tasks" / "mine"
    shutil.copytree(GEMM, folder)
    (folder / FILE).unlink()
    (folder / "task.toml").write_text((folder / "task.toml").read_text().replace('name = "gemm"', 'name = "mine"'))
    monkeypatch.setenv(content.VARIABLE, str(tmp_path))
    assert [(v.name, v.split) for v in variants_of(load_task("mine"))] == [(BASE, "eval")]
    with pytest.raises(UnknownNameError, match="known: base"):
        load_variant("mine", "qqq")


def test_a_macro_must_stand_once_in_the_naive_kernel(tmp_path: Path) -> None:
    task = load_variant("gemm", "nn-fp32")
    solution = task.solutions["h100"][0]
    text = task.source(solution)
    assert (
        "\n#define A_KM 1      // A is [K, M]" in text and "\n#define FP32 1 " in text and "\n#define BIAS 0 " in text
    )
    with pytest.raises(ContentError, match=r"naive\.cu: must have one line `#define WIDE <value>`, found 0"):
        task.source(solution.model_copy(update={"defines": {"WIDE": 1}}))


# Layouts in the judge


@given(st.permutations(["B", "S", "H", "D"]), st.sampled_from(["bf16", "fp32"]))
def test_stored_values_read_back_in_any_order_of_axes(order: list[str], dtype: str) -> None:
    axes = {"B": 2, "H": 3, "S": 5, "D": 4}
    tensor = Tensor(name="T", dtype=dtype, shape=tuple(order), logical=("B", "H", "S", "D"))
    values = np.arange(120, dtype=np.float32).reshape(2, 3, 5, 4)
    data = numbers.store(values, tensor)
    in_memory = numbers.decode(data, tensor.model_copy(update={"logical": ()}), axes)
    assert (in_memory == np.einsum(f"bhsd->{''.join(order).lower()}", values)).all()
    read = numbers.decode(data, tensor, axes)
    assert (read == values).all() and read.flags.c_contiguous


def test_regions_are_told_as_the_kernel_indexes_them() -> None:
    tensor = next(tensor for tensor in load_variant("attn_fwd", "bshd").outputs if tensor.name == "O")
    slices = (slice(0, 1), slice(2, 3), slice(64, 128), slice(0, 32))
    assert region(tensor, slices) == "O[0, 64:128, 2, 0:32]"
    assert region(tensor.model_copy(update={"shape": tensor.logical}), slices) == "O[0, 2, 64:128, 0:32]"


# Telling them apart


def test_no_two_variants_share_conditions() -> None:
    named: dict[str, str] = {}
    seeds: dict[int, str] = {}
    for task, _ in everything():
        drawn = conditions(task, "emulation", secret=b"one secret")
        for case in drawn.cases:
            assert seeds.setdefault(case.seed, task.label) == task.label
        assert named.setdefault(drawn.hash, task.label) == task.label


def test_the_same_text_gets_each_variant_its_own_verdict(evaluator: Evaluator) -> None:
    """A and B have the same types in all three: only what lies where differs."""
    gemm = load_task("gemm")
    text = gemm.source(gemm.solutions["h100"][0])
    for _ in range(2):  # the second time from memory
        for variant, status in ((BASE, Status.OK), ("nn", Status.WRONG_OUTPUT), ("tt", Status.WRONG_OUTPUT)):
            verdict = evaluator.evaluate(text, "gemm", "h100", "schedules", variant=variant)
            assert verdict.status is status
            assert verdict.provenance.variant == variant
    assert evaluator.evaluate(text, load_variant(gemm, "nn"), "h100", "schedules").status is Status.WRONG_OUTPUT


# Asking for them


def test_reset_and_make_take_a_variant(evaluator: Evaluator) -> None:
    env = gym.make("PTX-Gemm-H100", evaluator=evaluator, variant="tt")
    unwrapped = env.unwrapped
    assert isinstance(unwrapped, KernelEnv)
    observation, info = env.reset()
    assert "`B`: bf16 [K, N]" in observation["prompt"] and info["options"] == {}
    observation, info = env.reset(options={"variant": "nn-bias"})
    assert "`A`: bf16 [K, M]" in observation["prompt"] and "`bias`: bf16 [N]" in observation["prompt"]
    assert info["options"] == {"variant": "nn-bias"}
    assert unwrapped.episode.task.label == "gemm/nn-bias"
    observation, _ = env.reset(options={"variant": BASE})
    assert observation["prompt"] == render_prompt(load_env("PTX-Gemm-H100"))
    with pytest.raises(UnknownNameError, match="did you mean 'nn-bias'"):
        gym.make("PTX-Gemm-H100", variant="nn-bais")


def test_an_episode_on_a_variant_judges_that_variant(evaluator: Evaluator) -> None:
    episode = Episode("PTX-Gemm-H100", evaluator, variant="tt-k64", turns=2, workload="schedules")
    gemm = load_task("gemm")
    solution = episode.task.solutions["h100"][0]
    wrong = episode.submit(gemm.source(gemm.solutions["h100"][0]))
    right = episode.submit(episode.task.source(solution))
    assert (wrong.verdict.status, right.verdict.status) == (Status.WRONG_OUTPUT, Status.OK)
    assert right.verdict.provenance.variant == "tt-k64"


@pytest.mark.parametrize(
    ("env_id", "variant"),
    [
        ("PTX-Gemm-H100", "nt-div32-bias-gelu"),
        ("PTX-AttnFwd-H100", "d96-bshd"),
        ("PTX-AttnBwdCausal-H100", "ragged-dv"),
    ],
)
def test_variants_pass_the_checker(env_id: str, variant: str) -> None:
    env = gym.make(env_id, variant=variant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    env.close()


# Rows


@pytest.fixture(scope="module")
def rows() -> dict[str, list[Row]]:
    return {split: list(task_rows(split)) for split in ("train", "eval")}


def test_rows_are_all_variants_of_all_environments(rows: dict[str, list[Row]]) -> None:
    tasks = {name: variants_of(load_task(load_env(name).task)) for name in env_names()}
    for split, found in rows.items():
        known = [(name, variant.name) for name, all_ in tasks.items() for variant in all_ if variant.split == split]
        assert [(row.env, row.variant) for row in found] == known
    assert {(row.env, row.variant) for row in rows["eval"]} >= {(name, BASE) for name in env_names()}
    with pytest.raises(UnknownNameError, match=r"unknown split 'trian'; did you mean 'train'"):
        task_rows("trian")


def test_rows_survive_json_and_reset_gives_their_prompt(rows: dict[str, list[Row]], evaluator: Evaluator) -> None:
    for row in [*rows["train"][::25], *rows["eval"][::10]]:
        read = json.loads(row.model_dump_json())
        env = gym.make(read["env"], evaluator=evaluator)
        observation, _ = env.reset(options=read["options"])
        assert observation["prompt"] == read["prompt"]
        assert env.unwrapped.episode.task.variant == read["variant"]  # type: ignore[attr-defined]


def test_prompts_name_their_own_interface_and_differ(rows: dict[str, list[Row]]) -> None:
    found = [row for split in rows.values() for row in split]
    assert len({row.prompt for row in found}) == len(found)
    for row in found:
        task = load_variant(row.task, row.variant)
        assert f"{task.signature.declaration()};" in row.prompt
        for tensor in (*task.inputs, *task.outputs):
            assert f"- `{tensor.name}`: {tensor.dtype} [{', '.join(tensor.shape)}], row-major" in row.prompt
        for tensor in task.unused:
            assert f"`{tensor.name}`" not in row.prompt
