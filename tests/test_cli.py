"""The commands: exit statuses, JSON, tables, and errors in one line with a way out."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ptxgym import native
from ptxgym.cli import doctor, main
from ptxgym.cli.demo import activation, next_steps
from ptxgym.cli.verifying import choose_variants, mismatches
from ptxgym.device.cuda import gpu
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.ncu import Unavailable
from ptxgym.envs import load_env
from ptxgym.errors import InfrastructureError, ToolchainError
from ptxgym.evaluator import Evaluator
from ptxgym.prompt import render_prompt
from ptxgym.task import Solution
from ptxgym.verdict import Status, Verdict
from tests.bad_kernels import BAD, host
from tests.conftest import CHECKOUT

ENV = ("--env", "PTX-Gemm-H100")
SOLUTIONS = CHECKOUT / "tasks" / "gemm" / "solutions" / "h100"


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run the command line in this process."""

    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["ptxgym", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Ran(int(ended.value.code or 0), said.out, said.err)

    return call


@pytest.mark.parametrize(
    ("name", "score", "coverage", "family"),
    [("oracle", 0.5, 1.0, "wgmma"), ("naive", 0.2, 0.0, "fma"), ("mma_sync", 0.2, 0.0, "mma.sync")],
)
def test_eval_json_of_proven_kernels(
    run: Callable[..., Ran], name: str, score: float, coverage: float, family: str
) -> None:
    ran = run("eval", SOLUTIONS / f"{name}.cu", *ENV, "--json")
    verdict = json.loads(ran.out)
    assert (ran.code, verdict["status"], verdict["code"]) == (0, "ok", "judge.ok")
    assert verdict["score"] == score and verdict["evidence"]["coverage"] == coverage
    families = verdict["evidence"]["families"]
    assert max(families, key=lambda each: families[each]["multiply_adds"]) == family
    assert verdict["provenance"]["device"] == "emulator"
    assert Verdict.model_validate(verdict).score == score


def test_eval_of_a_failed_kernel_shows_the_feedback_and_exits_with_1(run: Callable[..., Ran], tmp_path: Path) -> None:
    file = tmp_path / "kernel.cu"
    file.write_text(str(BAD["syntax_error"]))
    ran = run("eval", file, *ENV)
    assert ran.code == 1
    assert ran.out.startswith("Does not compile. [compile_error · build.syntax]\n")
    assert "line 5 │ int x = ;" in ran.out
    assert json.loads(run("eval", file, *ENV, "--json").out)["status"] == "compile_error"


def test_eval_reads_standard_input_and_takes_bytes_that_are_no_text(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe kernel")))
    ran = run("eval", "-", *ENV, "--json")
    assert (ran.code, json.loads(ran.out)["code"]) == (1, "submission.not_text")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("eval", "missing.cu", *ENV), "cannot read missing.cu: No such file"),
        (("eval", "/", *ENV), "cannot read /: Is a directory"),
        (("eval", "x.cu", "--env", "PTX-Gem-H100"), "did you mean 'PTX-Gemm-H100'"),
        (("eval", __file__, *ENV, "--device", "cuda"), "no NVIDIA GPU"),
        (("eval", __file__, *ENV, "--device", "gpu"), "not 'gpu'"),
        (("eval", __file__), "--env"),
        (("show", "PTX-Gemm-B20"), "unknown environment"),
        (("verify",), "either --env ID or --all"),
        (("verify", "--variants", "some"), "a number from 1 or 'all', not 'some'"),
        (("verify", "--variants", "0"), "a number from 1 or 'all', not '0'"),
        (("show", "PTX-Gemm-H100", "--variant", "nn-bais"), "did you mean 'nn-bias'"),
        (("show", "PTX-Gemm-H100", "--knowledge", "parameters,recipe"), "did you mean 'recipes'"),
        (("eval", __file__, *ENV, "--variant", "d64"), "unknown variant of task gemm 'd64'"),
        (("tasks", "export", "--split", "test"), "unknown split 'test'"),
        (("tasks", "export", "--format", "csv"), "'jsonl' or 'json', not 'csv'"),
        (("verify", "--all", *ENV), "either --env ID or --all"),
        (("corpus", "/nowhere"), "no folder with .cu or .ptx files"),
        (("corpus", ".", "--arch", "h10"), "did you mean 'h100'"),
        (("evaluate",), "No such command"),
    ],
)
def test_usage_errors_exit_with_2_and_name_the_way_out(
    run: Callable[..., Ran], arguments: tuple[str, ...], said: str
) -> None:
    ran = run(*arguments)
    assert ran.code == 2
    assert said in " ".join(ran.err.split())
    assert "Traceback" not in ran.err


def test_json_of_a_wrong_kernel_reads_back_though_its_errors_are_infinite(
    run: Callable[..., Ran], tmp_path: Path
) -> None:
    file = tmp_path / "kernel.cu"
    file.write_text(str(BAD["wrong_output"]))
    ran = run("eval", file, *ENV, "--json")
    verdict = Verdict.model_validate_json(ran.out)
    assert (ran.code, verdict.status) == (1, Status.WRONG_OUTPUT)
    assert verdict.outputs[0].relative_error == float("inf")


@pytest.mark.parametrize("error", [ToolchainError("no usable CUDA 13 compiler"), InfrastructureError("disk full")])
def test_failures_of_the_machine_exit_with_3(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, error: InfrastructureError
) -> None:
    def fail(*_: object, **__: object) -> Verdict:
        raise error

    monkeypatch.setattr(Evaluator, "evaluate", fail)
    ran = run("eval", __file__, *ENV)
    assert (ran.code, ran.err) == (3, f"ptxgym: {error}\n")


def test_list_and_show(run: Callable[..., Ran]) -> None:
    listed = run("list")
    assert listed.code == 0
    for name in ("PTX-Gemm-H100", "ptxgym/Gemm-H100-v1", "gemm", "shaped", "ptxbench"):
        assert name in listed.out
    shown = run("show", "ptxgym/Gemm-H100-v1")
    assert shown.code == 0 and shown.out.startswith("# Dense matrix product")
    assert 'extern "C" void run(' in shown.out


def test_show_adds_knowledge_and_says_what_it_costs(run: Callable[..., Ran]) -> None:
    shown = run("show", "PTX-Gemm-H100", "--knowledge", "contract,parameters")
    config = load_env("PTX-Gemm-H100").override(knowledge=("parameters", "contract"))
    assert (shown.code, shown.out) == (0, render_prompt(config))
    rows = [line.split() for line in shown.err.splitlines()][1:]
    tokens = {row[0]: int(row[-2].replace(",", "")) for row in rows}
    assert list(tokens) == ["task", "parameters", "contract", "whole"]
    assert 0 <= tokens["task"] + tokens["parameters"] + tokens["contract"] - tokens["whole"] <= 3
    assert int(rows[-1][-1].replace(",", "")) == len(shown.out)


def test_list_shows_brackets_as_they_stand(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "rewards").mkdir()
    text = 'summary = "the best of C[m, n]"\npay = "end"\n[weights]\nscore = 1.0\n'
    (tmp_path / "rewards" / "mine.toml").write_text(text)
    monkeypatch.setenv("PTXGYM_CONTENT", str(tmp_path))
    assert "the best of C[m, n]" in run("list").out


def test_verify_accepts_the_proven_kernels(run: Callable[..., Ran]) -> None:
    ran = run("verify", *ENV)
    assert ran.code == 0, ran.out
    assert ran.out.count("✓") == 5


def test_variants_are_listed_shown_and_verified(run: Callable[..., Ran]) -> None:
    listed = run("list", "--variants")
    assert listed.code == 0 and "nt-div32-bias-gelu" in listed.out and "LSE alone, without V" in listed.out
    assert listed.out.rstrip().endswith("train: 171, eval: 44")
    shown = run("show", "PTX-AttnBwd-H100", "--variant", "d64-dv")
    assert shown.out.startswith("# Attention backward, dV alone (BF16, D = 64) for H100")
    ran = run("verify", *ENV, "--variants", "1", "--seed", "3")
    (chosen,) = choose_variants([load_env("PTX-Gemm-H100")], "1", 3)
    assert (ran.code, ran.out.count("✓")) == (0, 1) and chosen.variant in ran.out


def test_variants_are_chosen_by_the_seed_alone() -> None:
    configs = [load_env(name) for name in ("PTX-Gemm-H100", "PTX-AttnBwd-H100")]
    first, again, other = (choose_variants(configs, "5", seed) for seed in (1, 1, 2))
    assert first == again != other and len({(one.name, one.variant) for one in first}) == 5
    everything = choose_variants(configs, "all", 0)
    assert len(everything) == 54 + 44 and all(config.variant != "base" for config in everything)
    assert len(choose_variants(configs, "1000", 0)) == len(everything)


def test_export_writes_a_row_a_line_or_one_array(run: Callable[..., Ran]) -> None:
    lines = run("tasks", "export", "--split", "eval").out.splitlines()
    rows = json.loads(run("tasks", "export", "--split", "eval", "--format", "json").out)
    assert [json.loads(line) for line in lines] == rows
    assert {"env": "PTX-Gemm-H100", "options": {"variant": "base"}}.items() <= next(
        row for row in rows if row["env"] == "PTX-Gemm-H100"
    ).items()
    assert all(line.isascii() for line in lines)
    trained = [json.loads(line) for line in run("tasks", "export").out.splitlines()]
    assert {row["split"] for row in trained} == {"train"}
    assert not {(row["task"], row["variant"]) for row in trained} & {(row["task"], row["variant"]) for row in rows}


def test_verify_names_each_difference(kernels: dict[str, tuple[Solution, str]], evaluator: Evaluator) -> None:
    naive, text = kernels["naive"]
    verdict = evaluator.evaluate(text, "gemm")
    assert mismatches(naive, verdict) == []
    wrong = naive.model_copy(
        update={"status": Status.HAZARD, "score": 0.5, "coverage": 1.0, "family": "wgmma", "file": "x"}
    )
    assert mismatches(wrong, verdict) == [
        "status ok (judge.ok) instead of hazard",
        "score 0.20 instead of 0.50",
        "coverage 0.0 instead of 1.00",
        "most multiply-adds by fma instead of wgmma",
    ]


REFUSED = '__global__ void k(int* p) { asm volatile("multimem.red.relaxed.sys.global.add.u32 [%0], 1;" ::"l"(p)); }\n'


def test_corpus_says_what_decodes_what_is_refused_and_what_does_not_compile(
    run: Callable[..., Ran], tmp_path: Path
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "good.cu").write_text("__global__ void k(int* p) { *p = 1; }\n")
    good = run("corpus", tmp_path)
    assert good.code == 0 and "1 of 1 files decode wholly" in good.out
    (tmp_path / "folder.cu").mkdir()
    (tmp_path / "refused.cu").write_text(REFUSED)
    (tmp_path / "broken.cu").write_text("__global__ void k( {}\n")
    (tmp_path / "gone.cu").symlink_to("/no/such/file.cu")
    ran = run("corpus", tmp_path)
    assert ran.code == 1
    assert "deep/good.cu" in ran.out and "1 of 4 files decode wholly" in ran.out and "cannot be read" in ran.out
    assert "multimem.red" in ran.out and "does not compile" in ran.out
    assert "refused in 1 file: multimem.red.relaxed" in ran.out


def test_corpus_takes_ptx_of_other_compilers(run: Callable[..., Ran], tmp_path: Path) -> None:
    head = ".version 9.0\n.target sm_90a\n.address_size 64\n"
    (tmp_path / "good.ptx").write_text(head + ".visible .entry k() { ret; }\n")
    assert run("corpus", tmp_path).code == 0
    (tmp_path / "refused.ptx").write_text(head + ".visible .entry k() { wgmma.mma_async.sp.sync.aligned; ret; }\n")
    (tmp_path / "broken.ptx").write_text(head + ".visible .entry k( {}\n")
    ran = run("corpus", tmp_path)
    assert ran.code == 1 and "1 of 3 files decode wholly" in ran.out and "is no PTX" in ran.out
    assert "refused in 1 file: wgmma.mma_async.sp" in ran.out


def test_a_file_without_end_is_refused(run: Callable[..., Ran]) -> None:
    ran = run("eval", "/dev/zero", *ENV)
    assert (ran.code, ran.err) == (2, "ptxgym: /dev/zero is no kernel file: it has more than 64 MiB\n")


def test_demo_tells_the_story(run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run("demo")
    assert ran.code == 0, ran.err
    turns = re.split(r"\nturn \d: ", ran.out)[1:]
    assert len(turns) == 3
    assert "Correct." in turns[0] and "coverage 0.00" in turns[0]
    assert "wgmma_missing_wait.cu" in turns[1] and "wgmma.wait_group" in turns[1] and "line 1" in turns[1]
    assert "Correct." in turns[2] and "coverage 1.00" in turns[2]
    assert "Scores 0.20 → 0.00 → 0.50; rewards 0.20 + 0.00 + 0.30" in ran.out
    assert "ptxgym eval my_kernel.cu --env PTX-Gemm-H100" in ran.out


def test_commands_shown_after_the_demo_run_in_the_shell_that_called_it(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    assert activation() is None and next_steps("k.cu").startswith("ptxgym doctor")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    first = activation()
    assert first is not None
    kernel = CHECKOUT / "tasks" / "gemm" / "solutions" / "h100" / "naive.cu"
    commands = [line.split("   ")[0].strip() for line in next_steps(str(kernel)).splitlines()[:-1]]
    assert commands[0] == first and f"cp {kernel} my_kernel.cu" in commands
    shell = subprocess.run(
        ["sh", "-c", f"{first}; command -v ptxgym"], capture_output=True, text=True, env={"PATH": "/bin"}
    )
    assert Path(shell.stdout.strip()) == here / "ptxgym", shell.stderr


def test_doctor_finds_a_healthy_machine_and_names_the_fix_of_a_sick_one(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    well = run("doctor")
    assert well.code == 0, well.out
    for word in ("nvcc 13.", "isolation", "emulator, executor, recorder, sandbox", "cache", "GPU"):
        assert word in well.out

    def no_compiler() -> tuple[str, str]:
        raise ToolchainError("no C++ compiler: `g++` is not on PATH; install the Debian or Ubuntu package g++")

    monkeypatch.setattr(native, "host_compiler", no_compiler)
    sick = run("doctor")
    assert sick.code == 3
    assert "✗" in sick.out and "package g++" in " ".join(sick.out.split())


@pytest.mark.parametrize("device", ["auto", "emulator"])
def test_a_tier_is_refused_where_nothing_is_measured(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str
) -> None:
    monkeypatch.setattr("ptxgym.availability.gpu_for", lambda _: None)
    file = tmp_path / "kernel.cu"
    file.write_text("")
    for tier in ("publish", "rl"):
        refused = run("eval", file, *ENV, "--device", device, "--tier", tier)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err.startswith(f"ptxgym: tier '{tier}' is how a GPU measures, but kernels are emulated here: ")
    assert run("eval", file, *ENV, "--device", device).code == 1


def test_native_parts_are_announced_once_where_they_are_compiled(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "tiny"
    source.mkdir()
    (source / "tiny.cpp").write_text("int tiny;\n")
    tiny = native.Target(name="tiny", folder=source, output="libtiny.so")
    monkeypatch.setattr(native, "targets", lambda: {"tiny": tiny})
    monkeypatch.setenv("PTXGYM_CACHE", str(tmp_path / "cold"))
    first = run("doctor")
    assert first.err.startswith("tiny: compiling 1 file (once per machine") and first.err.count("\n") == 1
    assert "compiling" not in first.out
    assert run("doctor").err == ""


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_doctor_shows_its_table_where_the_cache_cannot_be_written(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(**_: object) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    ran = run("doctor")
    said = " ".join(ran.out.split())
    assert ran.code == 3
    assert "✗ cache cannot write to the cache folder" in said
    assert os.strerror(number).split()[0] in said and "PTXGYM_CACHE" in said
    assert "✓ packages" in said and "GPU" in said


def test_doctor_examines_what_measuring_needs_where_there_is_a_gpu(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    h200 = Gpu("GPU-doctor", 0, "NVIDIA H200", (9, 0), 141 << 30, "580.95")
    monkeypatch.setattr(gpu, "gpus", lambda: (h200,))
    monkeypatch.setattr(doctor, "gpus", lambda: (h200,))
    monkeypatch.setattr(doctor, "find_ncu", lambda: None)
    monkeypatch.setattr(
        doctor, "ncu_obstacle", lambda: Unavailable("it may not read counters", "run with CAP_SYS_ADMIN")
    )
    monkeypatch.setattr(doctor, "find_sanitizer", lambda: None)
    monkeypatch.setattr(doctor, "missing_packages", lambda: ("cuda-bindings", "cupy-cuda13x", "torch"))
    ran = run("doctor")
    assert ran.code == 0, ran.out  # the emulator still judges
    said = " ".join(ran.out.split())
    assert "NVIDIA H200, 141 GiB; driver 580.95" in said
    assert 'missing: cuda-bindings, cupy-cuda13x, torch pip install "ptxgym[gpu]"' in said
    assert "it may not read counters run with CAP_SYS_ADMIN" in said
    assert "faults are not located" in said and "granted" in said


def test_cache_is_shown_and_cleared(run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PTXGYM_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "kernel.cu"
    file.write_text(host(""))
    shown = run("cache")
    assert shown.code == 0 and str(tmp_path / "cache") in shown.out
    assert "removed 0 entries" in run("cache", "--clear").out


def test_installed_command_answers_without_a_terminal() -> None:
    command = Path(sys.executable).with_name("ptxgym")
    done = subprocess.run([command, "list"], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0 and "PTX-Gemm-H100" in done.stdout and "\x1b[" not in done.stdout
