"""Nsight Compute around the real executor program on a fake driver; the profiler and its reports are played."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from ptxgym.build.model import Build
from ptxgym.device.cuda import ncu
from ptxgym.device.cuda.executor import WARM_KERNEL
from ptxgym.device.cuda.ncu import (
    MOST_OBSERVED_LAUNCHES,
    Profiled,
    Unavailable,
    find_ncu,
    ncu_obstacle,
    ncu_permission,
    profile,
    start,
)
from ptxgym.errors import UsageError, WorkerDied
from ptxgym.plan.model import LaunchPlan
from ptxgym.verdict import Failure, Status

from ..executor.harness import GPU, Fake, launch, literal, plan, pointer
from .support import Installed, made_launch

A = np.arange(1000, dtype=np.uint8)
COPY = launch("copy", pointer("C"), pointer("A"), literal(1000, 8))
BUFFERS = [("A", "input", 1000), ("C", "output", 1000)]
ONE = plan(BUFFERS, COPY)
SASS = '\t.section\t.text.copy,"ax"\n\t//## File "/kernel.cu", line 2\n        /*0000*/  FFMA R0, R1, R2, R3 ;\n'


@pytest.fixture
def built(fake: Fake) -> Build:
    """A build with a listing."""
    places = {name: fake.folder / f"kernel.{name}" for name in ("cu", "sass", "ptx")}
    places["cu"].write_text("// one\n// two\n")
    places["sass"].write_text(SASS)
    places["ptx"].write_text("")
    return dataclasses.replace(fake.build(), source=places["cu"], sass=places["sass"], ptx=places["ptx"])


def run(built: Build, replayed: LaunchPlan = ONE, out: np.ndarray | None = None, **more):  # type: ignore[no-untyped-def, type-arg]
    return profile(GPU, built, replayed, {"A": A}, {"C": np.zeros(1000, np.uint8) if out is None else out}, **more)


def leftovers(tmp_path: Path) -> list[str]:
    return [
        path.name for path in tmp_path.iterdir() if path.name.startswith(("ptxgym-", "tmp")) and "GPU" not in path.name
    ]


def test_a_call_is_profiled_and_its_result_returned(
    installed: Installed, built: Build, fake: Fake, tmp_path: Path
) -> None:
    installed.say(made_launch("copy", values={"gpu__time_duration.sum": 31.0}))
    out = np.zeros(1000, np.uint8)
    found = run(built, out=out)
    assert isinstance(found, Profiled), found
    assert np.array_equal(out, A) and found.outputs["C"] is out
    assert (found.launches, found.durations_us, found.version) == (("copy",), (31.0,), "2025.3.1.0")
    assert [(c.form, c.line, c.multiply_adds) for c in found.counts] == [("FFMA", 2, 128), ("EXIT", None, 0)]
    assert [(k.kernel, k.duration_us) for k in found.kernels] == [("copy", 31.0)]
    calls = [line.split()[0] for line in fake.log("^(launch|residue|profiler|load)")]
    assert calls == ["load", "residue", "profiler_start", "launch", "profiler_stop"]
    assert leftovers(tmp_path) == []


def test_the_command_leaves_clocks_and_caches_alone_and_has_a_lock_of_its_own(
    installed: Installed, built: Build, tmp_path: Path
) -> None:
    installed.say(made_launch("copy"))
    assert isinstance(run(built), Profiled)
    asked = " ".join(installed.asked["argv"])
    assert "--config-file off --clock-control none --cache-control none --profile-from-start off" in asked
    assert "inst_executed,thread_inst_executed_true,gpu__time_duration.sum," in asked and "SourceCounters" in asked
    lock = Path(installed.asked["env"]["TMPDIR"])
    assert lock.name == f"ptxgym-ncu-{os.getuid()}-{GPU.uuid}" and lock.stat().st_mode & 0o777 == 0o700
    assert "PTXGYM_SECRET" not in installed.asked["env"]


def test_a_started_one_waits_and_is_used_once(installed: Installed, built: Build, tmp_path: Path, fake: Fake) -> None:
    installed.say(made_launch("copy"))
    waiting = start(GPU)
    assert not isinstance(waiting, Unavailable)
    waiting.connected()
    assert not (fake.folder / "log").exists(), "it touches no GPU before it is told to"
    waiting.ready()
    calls = [line.split()[0] for line in fake.log("^(launch|residue|profiler|load)")]
    assert calls == ["profiler_start", "residue", "profiler_stop"]  # a kernel of the executor's own
    assert isinstance(run(built, prewarmed=waiting), Profiled)
    with pytest.raises(UsageError):
        waiting.profile(built, ONE, {"A": A}, {})
    assert leftovers(tmp_path) == []


def test_one_that_is_not_used_leaves_nothing(installed: Installed, tmp_path: Path) -> None:
    waiting = start(GPU)
    assert not isinstance(waiting, Unavailable)
    waiting.close()
    waiting.close()
    assert leftovers(tmp_path) == []


def test_plans_with_many_launches_are_counted_only(installed: Installed, built: Build) -> None:
    installed.say(*[made_launch("copy") for _ in range(MOST_OBSERVED_LAUNCHES + 1)])
    waiting = start(GPU)
    assert not isinstance(waiting, Unavailable)
    found = run(built, plan(BUFFERS, *[COPY] * (MOST_OBSERVED_LAUNCHES + 1)), prewarmed=waiting)
    assert isinstance(found, Profiled)
    assert [(k.kernel, k.launches) for k in found.kernels] == [("copy", MOST_OBSERVED_LAUNCHES + 1)]
    assert len(found.launches) == MOST_OBSERVED_LAUNCHES + 1
    assert sum(count.multiply_adds for count in found.counts) == 128 * (MOST_OBSERVED_LAUNCHES + 1)
    asked = installed.asked["argv"]
    assert asked[asked.index("--metrics") + 1] == (
        "inst_executed,thread_inst_executed_true,gpu__time_duration.sum,"
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
    )
    assert "--section" not in asked


def test_only_the_kernel_of_the_executor_itself_is_left_out(installed: Installed, built: Build) -> None:
    installed.say(made_launch(WARM_KERNEL), made_launch("copy"))
    found = run(built)
    assert isinstance(found, Profiled) and found.launches == (WARM_KERNEL, "copy")


@pytest.mark.parametrize(
    ("said", "reason", "fix"),
    [("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the "
      "target device 0.", "may not read the GPU's counters (ERR_NVGPUCTRPERM)", "NVreg_RestrictProfilingToAdminUsers"),
     ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", "LibraryNotLoaded", "gVisor"),
     ("==ERROR== Failed to find metric regex:^x$", "does not know the metrics", "install"),
     ("==ERROR== Something else.", "Nsight Compute says: Something else.", "")],
)  # fmt: skip
@pytest.mark.parametrize("when", ["early", "late"])
def test_what_keeps_it_from_profiling_is_named(
    installed: Installed, built: Build, said: str, reason: str, fix: str, when: str
) -> None:
    installed.say(made_launch("copy"), **{when: said})
    ahead = start(GPU)
    assert not isinstance(ahead, Unavailable)
    ahead.ready()
    for found in (run(built), run(built, prewarmed=ahead), ncu_permission(GPU)):
        assert isinstance(found, Unavailable), found
        assert reason in found.reason and fix in found.fix


def test_a_permitted_gpu_has_permission(installed: Installed) -> None:
    assert ncu_permission(GPU) is None


def test_a_profiler_that_dies_without_a_word_is_the_machines_failure(installed: Installed, built: Build) -> None:
    installed.say(early="Segmentation fault")
    with pytest.raises(WorkerDied, match="Segmentation fault"):
        run(built)


def test_faults_are_the_submissions_and_hangs_are_nobodys(installed: Installed, built: Build) -> None:
    fault = run(built, plan(BUFFERS, launch("fault", literal(700, 4))))
    assert isinstance(fault, Failure) and fault.status is Status.RUNTIME_FAULT
    hang = run(built, plan(BUFFERS, launch("hang")), timeout_s=0.5)
    assert isinstance(hang, Unavailable) and "did not end within 0.5 s" in hang.reason and hang.by_kernel


def test_no_report_is_unavailable(installed: Installed, built: Build) -> None:
    installed.say()
    (installed.folder / "report.json").write_text("not a report")
    found = run(built)
    assert isinstance(found, Unavailable) and "report cannot be read" in found.reason


@pytest.mark.parametrize(
    ("version", "reason"), [("2022.4.0.0", "2022.4.0.0 is too old"), ("2023.3.0.0", None), ("2026.1.0.0", None)]
)
def test_old_versions_are_refused(installed: Installed, version: str, reason: str | None) -> None:
    installed.say(version=version)
    found = ncu_obstacle()
    assert found is None if reason is None else isinstance(found, Unavailable) and reason in found.reason


def test_a_missing_reader_is_named(installed: Installed) -> None:
    (installed.folder / "extras/python/ncu_report.py").unlink()
    found = ncu_obstacle()
    assert found is not None and "extras/python" in found.reason


def test_where_nothing_is_installed_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ncu, "_PLACES", ())
    find_ncu.cache_clear()
    found = start(GPU)
    find_ncu.cache_clear()
    assert isinstance(found, Unavailable) and found.reason == "Nsight Compute is not installed" and "PATH" in found.fix


@pytest.mark.parametrize(
    ("parameters", "capabilities", "allowed"),
    [("RmProfilingAdminOnly: 1\n", "0000000000000000", False), ("RmProfilingAdminOnly: 1\n", "0000000000200000", True),
     ("RmProfilingAdminOnly: 1\n", "0000004000000000", True), ("RmProfilingAdminOnly: 0\n", "0000000000000000", True)],
)  # fmt: skip
def test_the_drivers_restriction_binds_those_without_capabilities(
    installed: Installed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parameters: str,
    capabilities: str,
    allowed: bool,
) -> None:
    (tmp_path / "params").write_text(parameters)
    (tmp_path / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    monkeypatch.setattr(ncu, "_DRIVER_PARAMETERS", tmp_path / "params")
    monkeypatch.setattr(ncu, "_PROCESS_STATUS", tmp_path / "status")
    found = ncu_obstacle()
    assert (found is None) == allowed
    if found is not None:
        assert "ERR_NVGPUCTRPERM" in found.reason
