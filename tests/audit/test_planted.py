"""The audit finds what was planted, and nothing in kernels that keep the contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ptxgym.audit import Audit, Outcome, audit
from ptxgym.cache import Cache
from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.envs import env_names, load_env
from ptxgym.task import load_task
from tests.audit.planted import PLANTED, Planted


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatorDevice]:
    emulator = EmulatorDevice()
    yield emulator
    emulator.close()


def _texts() -> dict[tuple[str, str], str]:
    return {
        (name, Path(solution.file).stem): task.source(solution)
        for name in env_names()
        for task in (load_task(load_env(name).task),)
        for solution in task.solutions[load_env(name).arch]
    }


TEXTS = _texts()


def _audited(env: str, text: str, device: EmulatorDevice) -> Audit:
    return audit(text, load_env(env), device, Cache())


@pytest.mark.parametrize(("env", "file"), TEXTS)
def test_solutions_violate_nothing_and_leave_nothing_open(env: str, file: str, device: EmulatorDevice) -> None:
    found = _audited(env, TEXTS[env, file], device)
    assert [(check.name, check.found) for check in found.having(Outcome.VIOLATED)] == []
    assert [(check.name, check.found) for check in found.having(Outcome.UNKNOWN)] == []
    assert found.sound
    assert len(found.having(Outcome.KEPT)) >= 10
    assert all("to its end" in run for run in found.runs)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_planted_violations_are_found(planted: Planted, device: EmulatorDevice) -> None:
    text = TEXTS[planted.env, planted.file]
    assert planted.old in text
    broken = text.replace(planted.old, planted.new)
    found = _audited(planted.env, broken, device)
    violated = {check.name: check for check in found.having(Outcome.VIOLATED)}
    assert planted.item in violated
    check = violated[planted.item]
    assert not found.sound
    assert check.found
    if planted.line_of:
        assert check.source_line is not None
        assert check.line is not None
        assert check.source_line == broken.split("\n")[check.line - 1].strip()[:200]
        assert planted.line_of in check.source_line


def test_enough_is_planted() -> None:
    assert len({planted.item for planted in PLANTED}) >= 25
    assert {planted.env.rpartition("-")[2] for planted in PLANTED} == {"H100", "B200"}


def test_the_teaching_kernel_is_told_from_its_solution(device: EmulatorDevice) -> None:
    task = load_task("gemm")
    (example,) = task.examples["h100"]
    found = _audited("PTX-Gemm-H100", task.source(example), device)
    assert "order.overwrite" in {check.name for check in found.having(Outcome.VIOLATED)}


def test_what_a_hang_hides_is_not_claimed(device: EmulatorDevice) -> None:
    text = TEXTS["PTX-Gemm-H100", "wgmma"].replace("cursor.parity ^ 1", "cursor.parity")
    checks = {check.name: check for check in _audited("PTX-Gemm-H100", text, device).checks}
    assert checks["mbarrier.waits"].outcome is Outcome.VIOLATED
    for hidden in ("mbarrier.arrivals", "mbarrier.parity", "descriptor.swizzle", "output.written", "order.proxy"):
        assert checks[hidden].outcome is Outcome.UNKNOWN
    assert checks["map.box"].outcome is Outcome.KEPT
    assert checks["tmem.columns"].outcome is Outcome.NOT_APPLICABLE


def test_notes_leave_an_item_open(device: EmulatorDevice) -> None:
    fences = (
        '    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");\n'
        '    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n'
    )
    text = TEXTS["PTX-Gemm-H100", "wgmma"]
    assert fences in text
    found = _audited("PTX-Gemm-H100", text.replace(fences, ""), device)
    (check,) = found.having(Outcome.UNKNOWN)
    assert (check.name, check.code) == ("mbarrier.init", "mbarrier.init_not_visible")
    assert found.sound


def test_a_base_that_nothing_aligns_is_left_open(device: EmulatorDevice) -> None:
    text = TEXTS["PTX-Gemm-H100", "wgmma"]
    rounding = "(reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023}"
    assert rounding in text
    found = _audited("PTX-Gemm-H100", text.replace(rounding, "raw"), device)
    assert "smem.base" in {check.name for check in found.having(Outcome.UNKNOWN)}
    declared = text.replace(rounding, "raw").replace(
        "extern __shared__ uint8_t", "extern __shared__ __align__(1024) uint8_t"
    )
    base = next(check for check in _audited("PTX-Gemm-H100", declared, device).checks if check.name == "smem.base")
    assert base.outcome is Outcome.KEPT
    assert "alignment 1024" in base.found


def test_sizes_written_into_the_code_are_found(device: EmulatorDevice) -> None:
    text = TEXTS["PTX-Gemm-H100", "naive"]
    start = text.index("cudaStream_t stream) {") + len("cudaStream_t stream) {")
    broken = text[:start] + "\n  M = 128, N = 256, K = 320;" + text[start:]
    checks = {check.name: check for check in _audited("PTX-Gemm-H100", broken, device).checks}
    assert checks["launch.sizes"].outcome is Outcome.VIOLATED
    assert checks["smem.bounds"].outcome is Outcome.VIOLATED  # the other shape has less of K
    assert "M=256, N=768, K=64" in checks["launch.sizes"].found


def test_a_refused_launch_leaves_open_what_it_hides(device: EmulatorDevice) -> None:
    launch = "kThreads, kSharedBytes, stream"
    text = TEXTS["PTX-Gemm-H100", "wgmma"].replace(launch, "kThreads + 128, kSharedBytes, stream")
    checks = {check.name: check for check in _audited("PTX-Gemm-H100", text, device).checks}
    assert checks["host.compiles"].outcome is Outcome.KEPT
    assert checks["host.records"].outcome is Outcome.VIOLATED
    assert checks["launch.block"].code == "launch.bounds"
    assert checks["map.box"].outcome is checks["mbarrier.bytes"].outcome is Outcome.UNKNOWN
    assert checks["tmem.columns"].outcome is Outcome.NOT_APPLICABLE


def test_a_shape_that_cannot_be_launched_is_found(device: EmulatorDevice) -> None:
    start = "  const CUtensorMap map_a = tensor_map(A, M, K, kTileM);"
    text = TEXTS["PTX-Gemm-H100", "wgmma"]
    assert start in text
    found = _audited("PTX-Gemm-H100", text.replace(start, "  if (M > 128) return;\n" + start), device)
    checks = {check.name: check for check in found.checks}
    assert checks["host.records"].outcome is checks["launch.sizes"].outcome is Outcome.VIOLATED
    assert checks["map.extent"].outcome is Outcome.UNKNOWN
    assert checks["output.written"].outcome is Outcome.UNKNOWN
