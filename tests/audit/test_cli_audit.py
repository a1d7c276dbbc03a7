"""`ptxgym audit` as its users meet it."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from ptxgym.audit import Audit, Outcome
from ptxgym.cli.commands import app
from ptxgym.task import load_task


def _file(tmp_path: Path, name: str, old: str = "", new: str = "") -> Path:
    task = load_task("gemm")
    kernel = next(one for one in task.solutions["h100"] if one.file.endswith(f"/{name}.cu"))
    path = tmp_path / "kernel.cu"
    path.write_text(task.source(kernel).replace(old, new) if old else task.source(kernel))
    return path


def test_the_checklist_marks_every_item_and_exits_by_the_worst(tmp_path: Path) -> None:
    kept = CliRunner().invoke(app, ["audit", str(_file(tmp_path, "wgmma")), "--env", "PTX-Gemm-H100"])
    assert kept.exit_code == 0
    assert "✓ mbarrier.bytes" in kept.output
    assert "announced: 49,152 bytes" in kept.output
    assert "– not applicable: launch.cluster" in kept.output
    assert "0 violated, 0 could not be told" in kept.output

    expect = "barrier_expect(&shared.full[cursor.slot], kStageBytes"
    broken = _file(tmp_path, "wgmma", expect, expect + " + 128")
    found = CliRunner().invoke(app, ["audit", str(broken), "--env", "PTX-Gemm-H100"])
    assert found.exit_code == 1
    assert "✗ mbarrier.bytes" in found.output
    assert "way out: " in found.output
    assert "| barrier_expect(&shared.full[cursor.slot], kStageBytes + 128);" in found.output
    assert "? a run broke off (emulator.deadlock) before this could be seen: " in found.output


def test_json_is_the_model(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["audit", str(_file(tmp_path, "naive")), "--env", "PTX-Gemm-H100", "--json"])
    assert ran.exit_code == 0
    audit = Audit.model_validate_json(json.dumps(json.loads(ran.output)))
    assert (audit.env, audit.task, audit.arch) == ("PTX-Gemm-H100", "gemm", "h100")
    assert len(audit.runs) == 4  # a grid that is the same on few SMs needs no fifth
    assert {check.outcome for check in audit.checks} == {Outcome.KEPT, Outcome.NOT_APPLICABLE}


def test_what_is_no_submission_is_a_violation_and_nothing_else_is_claimed(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text("int main() { return 0; }\n")
    ran = CliRunner().invoke(app, ["audit", str(path), "--env", "PTX-Gemm-B200", "--json"])
    assert ran.exit_code == 1
    audit = Audit.model_validate_json(ran.output)
    assert [check.name for check in audit.having(Outcome.VIOLATED)] == ["host.compiles"]
    assert audit.having(Outcome.KEPT) == ()


def test_usage_errors_exit_with_2() -> None:
    assert CliRunner().invoke(app, ["audit"]).exit_code == 2
