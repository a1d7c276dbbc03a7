from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ptxgym import content
from ptxgym.errors import ContentError, UnknownNameError, UsageError
from ptxgym.task import Task, expected, load_arch, load_task, oracle
from ptxgym.variants import load_variant
from ptxgym.verdict import Status

GEMM = content.builtin_root() / "tasks" / "gemm"


@pytest.fixture(scope="module")
def gemm() -> Task:
    return load_task("gemm")


def copy_of_gemm(tmp_path: Path, old: str, new: str) -> Path:
    folder = tmp_path / "tasks" / "mine"
    shutil.copytree(GEMM, folder)
    text = (folder / "task.toml").read_text().replace('name = "gemm"', 'name = "mine"')
    assert old in text
    (folder / "task.toml").write_text(text.replace(old, new))
    return folder


def test_declaration(gemm: Task) -> None:
    assert gemm.signature.declaration() == (
        'extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, '
        "int M, int N, int K, cudaStream_t stream)"
    )
    assert gemm.signature.declaration("entry").startswith('extern "C" void entry(')


def test_sizes_and_counts(gemm: Task) -> None:
    axes = {"M": 128, "N": 256, "K": 64}
    assert gemm.sizes_bytes(axes) == {"A": 16_384, "B": 32_768, "C": 65_536}
    assert gemm.required_multiply_adds(axes) == 2_097_152
    assert gemm.warp_instruction_budget(axes) == 24_194_304


def test_workloads_are_those_of_the_benchmark(gemm: Task) -> None:
    assert gemm.workload("hardware").axes == {"M": 8192, "N": 7168, "K": 5120}
    emulation = gemm.workload("emulation")
    for shape in (emulation.axes, *emulation.hidden):
        assert shape["M"] != shape["N"] or shape["K"] != shape["N"]
    assert emulation.axes["K"] > 2 * 4 * 64  # wraps four stages of 64 more than twice
    assert gemm.workload("schedules").axes["K"] > 4 * 64


@pytest.mark.parametrize(
    ("axes", "problem"),
    [
        ({"M": 128, "N": 256, "K": 64}, None),
        ({"M": 130, "N": 256, "K": 64}, "M=130 is not a multiple of 128"),
        ({"M": 128, "N": 256, "K": 0}, "K=0 lies outside 64 … 16384"),
        ({"M": 128, "N": 32768, "K": 64}, "N=32768 lies outside"),
        ({"M": 128, "N": 256}, "axes must be M, N, K, found M, N"),
    ],
)
def test_contract(gemm: Task, axes: dict[str, int], problem: str | None) -> None:
    found = gemm.shape_problem(axes)
    assert found is None if problem is None else problem in (found or "")


def test_unknown_names_suggest(gemm: Task) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'hardware'"):
        gemm.workload("hardwear")
    with pytest.raises(UnknownNameError, match="did you mean 'h100'"):
        load_arch("H10O")
    with pytest.raises(UnknownNameError, match="did you mean 'gemm'"):
        load_task("gmm")


def test_every_solution_is_there_and_the_oracle_comes_last(gemm: Task) -> None:
    solutions = expected(gemm, "h100")
    assert [Path(s.file).stem for s in solutions] == ["naive", "mma_sync", "wgmma", "oracle"]
    assert oracle(gemm, "h100") is solutions[-1]
    assert all(s.status is Status.OK for s in solutions)
    assert [(s.score, s.coverage) for s in solutions] == [(0.2, 0.0), (0.2, 0.0), (0.5, 1.0), (0.5, 1.0)]
    signature = "".join(gemm.signature.declaration().split())
    for kernel in (*solutions, *gemm.examples["h100"]):
        assert signature in "".join(gemm.source(kernel).split())


def test_blackwell_has_a_naive_kernel_and_an_oracle(gemm: Task) -> None:
    solutions = expected(gemm, "b200")
    found = [(Path(s.file).stem, s.score, s.coverage) for s in solutions]
    assert found == [("naive", 0.2, 0.0), ("pair", 0.5, 1.0), ("oracle", 0.5, 1.0)]
    assert oracle(gemm, "b200") is solutions[-1]


def test_every_solution_file_is_listed(gemm: Task) -> None:
    variant = load_variant(gemm, "nn")
    groups = (*gemm.solutions.values(), *gemm.examples.values(), *variant.solutions.values())
    listed = {kernel.file for group in groups for kernel in group}
    assert listed == {str(path.relative_to(GEMM)) for path in GEMM.rglob("*.cu")}


def test_solutions_and_folder_stay_out_of_the_public_dump(gemm: Task) -> None:
    assert "folder" not in gemm.model_dump()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            'multiply_adds = "M * N * K"',
            'multiply_adds = "M * N * S"',
            "counts.multiply_adds: 'M * N * S' uses unknown",
        ),
        ('flops = "2 * M * N * K"', 'flops = "2 ** M"', "counts.flops: '2 ** M': only integers, axes"),
        (
            "M = 256, N = 512, K = 576",
            "M = 257, N = 512, K = 576",
            "workloads.emulation: M=257 is not a multiple of 128",
        ),
        (
            "M = 128, N = 768, K = 448",
            "M = 128, N = 768, K = 440",
            "workloads.emulation: K=440 is not a multiple of 64",
        ),
        ('shape = ["M", "N"]', 'shape = ["M", "Q"]', "tensor C: shape uses unknown axes Q"),
        ('name = "C"', 'name = "B"', "argument names must differ; repeated: B"),
        (
            'dtype = "bf16"\nshape = ["M", "N"]',
            'dtype = "bf61"\nshape = ["M", "N"]',
            "outputs.0.dtype: Input should be 'bf16' or 'fp32'",
        ),
        ("[workloads.schedules]", "[workloads.scheduled]", "workloads.schedules is missing"),
        ("[[examples.h100]]", "[[examples.h200]]", "unknown architecture 'h200'; did you mean 'h100'"),
        ('title = "Dense', 'titel = "Dense', "unknown key 'titel'; did you mean 'title'"),
        ("score = 0.20", "score = 2.0", "score: Input should be less than or equal to 1, found 2.0"),
        ('draws = ["normal"]', 'draws = ["gaussian"]', "workloads.schedules.draws.0: Input should be 'normal'"),
        ('hidden_draws = ["spiky", "integers"]', "hidden_draws = []", "hidden and hidden_draws must be given together"),
        ("least = { integers = { K = 128 } }", "least = { sharp = { K = 128 } }", "least names sharp, no hidden draw"),
        ("least = { integers = { K = 128 } }", "least = { integers = { S = 128 } }", "least uses unknown axes S"),
        (
            'draws = ["normal", "shifted"]\nhidden_draws = ["spiky", "integers"]\nleast = { integers = { K = 128 } }',
            'draws = ["normal"]\nhidden_draws = ["integers"]\nleast = { integers = { K = 128 } }',
            "least names every hidden draw, and there is one other",
        ),
        (
            'shape = ["M", "K"]',
            'shape = ["M", "K"]\ncancelling = { mean = 1, along = "N" }',
            "cancelling.along is N, no axis of shape, M, K",
        ),
        (
            'draws = ["normal", "shifted"]\nhidden_draws = ["spiky", "integers"]\nleast',
            'draws = ["normal", "integers"]\nhidden_draws = ["spiky", "integers"]\nleast',
            "least names integers, made on the workload's own axes as it is",
        ),
        ('shape = ["M", "N"]', 'shape = ["M", "N"]\nderived = true', "only inputs can be derived, not the outputs C"),
    ],
)
def test_malformed_tasks_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, complaint: str
) -> None:
    folder = copy_of_gemm(tmp_path, old, new)
    monkeypatch.setenv(content.VARIABLE, str(tmp_path))
    with pytest.raises(ContentError) as caught:
        load_task("mine")
    assert complaint in str(caught.value)
    assert str(folder / "task.toml") in str(caught.value)


def test_a_task_of_ones_own_works_without_touching_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_of_gemm(tmp_path, "revision = 1", "revision = 7")
    monkeypatch.setenv(content.VARIABLE, str(tmp_path))
    task = load_task("mine")
    assert task.revision == 7 and callable(task.reference().reference)


def test_folder_and_name_must_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_of_gemm(tmp_path, 'name = "mine"', 'name = "yours"')
    monkeypatch.setenv(content.VARIABLE, str(tmp_path))
    with pytest.raises(ContentError, match="must equal the folder's name 'mine', found 'yours'"):
        load_task("mine")


def test_missing_reference_function_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy_of_gemm(tmp_path, "revision = 1", "revision = 2")
    text = (folder / "reference.py").read_text().replace("ideal = _PLAIN.ideal", "")
    (folder / "reference.py").write_text(text)
    monkeypatch.setenv(content.VARIABLE, str(tmp_path))
    with pytest.raises(ContentError, match=r"reference\.py: function ideal is missing"):
        load_task("mine").reference()


def test_a_task_with_derived_inputs_must_say_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_of_gemm(tmp_path, 'shape = ["N", "K"]', 'shape = ["N", "K"]\nderived = true')
    monkeypatch.setenv(content.VARIABLE, str(tmp_path))
    with pytest.raises(ContentError, match=r"reference\.py: function derived is missing"):
        load_task("mine").reference()


def test_tasks_of_a_folder_share_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy_of_gemm(tmp_path, "revision = 1", "revision = 3")
    (tmp_path / "tasks" / "products").mkdir()
    (folder / "reference.py").rename(tmp_path / "tasks" / "products" / "plain.py")
    names = "reference, ideal, accumulation, predictors"
    (folder / "reference.py").write_text(f"from ..products.plain import {names}\n")
    monkeypatch.setenv(content.VARIABLE, str(tmp_path))
    assert "products" not in content.find("tasks")
    module = load_task("mine").reference()
    assert module.reference.__module__.endswith(".products.plain")
    assert module.reference is not load_task("gemm").reference().reference


def test_tasks_without_solutions_say_so(gemm: Task) -> None:
    bare = gemm.model_copy(update={"solutions": {}})
    with pytest.raises(UsageError, match="task gemm has no solutions for h100"):
        expected(bare, "h100")
