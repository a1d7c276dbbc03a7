"""The measured branch end to end: real builds, plans, emulator and judge process; only the GPU in it is numpy."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptxgym.device.cuda.client import CudaJudge
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.model import Tier, Witness
from ptxgym.device.cuda.ncu import Unavailable
from ptxgym.errors import InfrastructureError, UsageError, WorkerDied
from ptxgym.evaluator import Evaluator
from ptxgym.feedback import render
from ptxgym.measured import causes
from ptxgym.task import Solution, Task
from ptxgym.verdict import Failure, Finding, Severity, Stage, Status
from tests.bad_kernels import BAD
from tests.device.cuda import fakes

Kernels = dict[str, tuple[Solution, str]]
SMALL = "emulation"


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an H200, as far as the evaluator can see; the folder tells the judge process what to do."""

    def gpu_for(arch: str) -> Gpu | None:
        return fakes.GPU if arch == "h100" else None

    monkeypatch.setattr("ptxgym.availability.gpu_for", gpu_for)
    monkeypatch.setattr("ptxgym.availability.missing_packages", lambda: ())
    monkeypatch.setattr(
        "ptxgym.evaluator.CudaJudge", functools.partial(CudaJudge, bench="tests.device.cuda.fakes:ProcessBench")
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def cuda(room: Path) -> Iterator[Evaluator]:
    with Evaluator("cuda") as evaluator:
        yield evaluator


def test_right_kernel_is_measured_and_says_where(cuda: Evaluator, kernels: Kernels) -> None:
    text = kernels["wgmma"][1]
    verdict = cuda.evaluate(text, "gemm", "h100", SMALL)
    assert (verdict.status, verdict.notes) == (Status.OK, ())
    assert verdict.score > 0.9 and verdict.measured.timing is not None
    assert verdict.evidence is not None
    assert (verdict.evidence.source, verdict.evidence.ablation) == ("ncu", "depends")
    where = verdict.provenance
    assert (where.device, where.driver, where.tier) == ("NVIDIA H200", "580.95", "standard")
    assert where.device_profile == "h200" and where.emulator_revision and "pid" in where.libraries
    assert {"build", "plan", "emulator", "measure", "execute", "timing"} <= set(verdict.measured.durations_s)
    assert cuda.evaluate(text, "gemm", "h100", SMALL) is verdict
    said = render(verdict, text)
    assert "## Speed" in said and "## Nsight Compute" in said and "over cuBLAS" in said


def test_what_runs_may_vary_is_not_called_deterministic(cuda: Evaluator, kernels: Kernels) -> None:
    verdict = cuda.evaluate(kernels["wgmma"][1], "gemm", "h100", SMALL)
    assert verdict.evidence is not None
    other = verdict.model_copy(
        update={
            "score": 0.93,
            "evidence": verdict.evidence.model_copy(update={"families": {}, "other_multiply_adds": 17}),
        }
    )
    assert other.deterministic() == verdict.deterministic()
    denied = verdict.model_copy(update={"evidence": verdict.evidence.model_copy(update={"target_ok": False})})
    assert denied.deterministic() != verdict.deterministic()


def test_tier_is_part_of_the_verdict(room: Path, kernels: Kernels) -> None:
    with Evaluator("cuda", tier="rl") as evaluator:
        naive = evaluator.evaluate(kernels["naive"][1], "gemm", "h100", SMALL)
        fast = evaluator.evaluate(kernels["wgmma"][1], "gemm", "h100", SMALL)
    assert naive.provenance.tier == "rl" and naive.measured.timing is None and naive.score == 0.2
    assert fast.evidence is not None and fast.evidence.source == "emulator" and fast.score > 0.9


def test_publish_without_nsight_compute_is_refused_before_any_work(
    room: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptxgym.measured.ncu_obstacle", lambda: Unavailable("it is not installed", "install it"))
    with Evaluator("cuda", tier="publish") as evaluator:
        with pytest.raises(UsageError, match="it is not installed; install it; or use tier standard"):
            evaluator.evaluate(kernels["wgmma"][1], "gemm", "h100", SMALL)
        assert evaluator._judges[fakes.GPU.uuid].pid is None


@pytest.mark.parametrize(
    ("name", "status"), [("syntax_error", Status.COMPILE_ERROR), ("host_abort", Status.PLAN_ERROR)]
)
def test_what_fails_early_is_not_measured_and_takes_its_announcement_back(
    cuda: Evaluator, kernels: Kernels, name: str, status: Status
) -> None:
    for number in range(2):
        verdict = cuda.evaluate(f"{BAD[name]}\n// {number}", "gemm", "h100", SMALL)
        assert verdict.status is status and verdict.measured.timing is None
    text = kernels["wgmma"][1] + f"\n// after {name}"
    assert int(cuda.evaluate(text, "gemm", "h100", SMALL).provenance.libraries["expected"]) <= 1


def test_hazards_that_the_emulator_sees_are_told_and_marked(cuda: Evaluator, kernels: Kernels) -> None:
    text = kernels["wgmma_missing_wait"][1]
    verdict = cuda.evaluate(text, "gemm", "h100", SMALL)
    assert verdict.status is Status.OK  # the GPU of this test gets it right
    assert verdict.evidence is not None and not verdict.evidence.target_ok and verdict.score == 0.2
    seen = [finding for finding in verdict.findings if finding.severity is Severity.ERROR]
    assert seen and all(finding.source == "emulator" and finding.line for finding in seen)
    assert "seen by the emulator" in render(verdict, text)


def test_machine_failure_passes_through_and_the_next_is_measured(cuda: Evaluator, kernels: Kernels, room: Path) -> None:
    text = kernels["wgmma"][1]
    (room / "behaviour").write_text("die")
    with pytest.raises(InfrastructureError, match="judge process"):
        cuda.evaluate(text, "gemm", "h100", SMALL)
    assert cuda.evaluate(text, "gemm", "h100", SMALL).status is Status.OK


@pytest.mark.parametrize("tier", ["rl", "standard"])
def test_emulator_that_is_killed_where_nothing_else_counts_leaves_no_verdict_behind(
    room: Path, kernels: Kernels, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise WorkerDied("the emulator's worker was killed by SIGKILL")

    text = kernels["wgmma"][1]
    (room / "behaviour").write_text("unprofiled")
    with Evaluator("cuda", tier=tier) as evaluator:
        with monkeypatch.context() as patch:
            patch.setattr("ptxgym.pipeline.emulated", killed)
            with pytest.raises(InfrastructureError, match="killed by SIGKILL"):
                evaluator.evaluate(text, "gemm", "h100", SMALL)
        verdict = evaluator.evaluate(text, "gemm", "h100", SMALL)
    assert verdict.evidence is not None and verdict.evidence.source == "emulator" and verdict.score > 0.9


def test_failure_of_the_emulator_names_a_cause_and_decides_nothing() -> None:
    race = Finding(code="shared.race", severity=Severity.ERROR, message="two warps write one word")

    def failed(status: Status, *findings: Finding) -> Witness:
        return Witness(
            Failure(stage=Stage.EXECUTE, status=status, code="hang.deadlock", message="All wait.", findings=findings)
        )

    first, second = causes(failed(Status.HANG, race))
    assert (first.code, first.message, first.source) == ("hang.deadlock", "All wait.", "emulator")
    assert (second.code, second.source) == ("shared.race", "emulator")
    assert causes(failed(Status.NOT_EMULATED)) == ()


def test_auto_takes_the_gpu_and_its_workload(room: Path, gemm: Task) -> None:
    with Evaluator() as auto, Evaluator("emulator") as emulator:
        assert auto.gpu("h100") == fakes.GPU and emulator.gpu("h100") is None
        auto.check_workload(gemm, "hardware")
        with pytest.raises(UsageError, match="timed on a GPU"):
            emulator.check_workload(gemm, "hardware")


def test_auto_without_the_packages_emulates_and_says_so(
    room: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptxgym.availability.missing_packages", lambda: ("torch", "cupy-cuda13x"))
    with Evaluator() as evaluator:
        verdict = evaluator.evaluate(kernels["naive"][1], "gemm")
    assert verdict.provenance.device == "emulator" and verdict.provenance.tier is None
    assert verdict.notes[-1] == (
        'speed: NVIDIA H200 is here, but torch, cupy-cuda13x are not installed: pip install "ptxgym[gpu]"'
    )
    with pytest.raises(UsageError, match=r"torch, cupy-cuda13x are not installed: pip install \"ptxgym\[gpu\]\""):
        Evaluator("cuda")


def test_cuda_without_a_gpu_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgym.device.cuda.gpu.gpus", lambda: ())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UsageError, match=r"no NVIDIA GPU.*'emulator'"):
        Evaluator("cuda")
