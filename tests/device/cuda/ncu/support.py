"""Launches by hand, and a Nsight Compute that is none."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptxgym.device.cuda.executor import WARM_KERNEL
from ptxgym.device.cuda.report import Launch

from ..executor.harness import BEHAVIOURS

HERE = Path(__file__).parent


def launch_of(data: Mapping[str, Any]) -> Launch:
    """A launch from JSON."""
    return Launch(
        data["kernel"], data["values"], tuple(data["sass"]), tuple(data["offsets"]),
        {name: tuple(values) for name, values in data["instances"].items()},
    )  # fmt: skip


def made_launch(
    kernel: str = "k",
    sass: Sequence[str] = ("FFMA R0, R1, R2, R3", "EXIT"),
    warp: Sequence[int] = (4, 4),
    thread: Sequence[int] = (128, 128),
    **more: Any,
) -> Launch:
    """A small launch."""
    instances = {"inst_executed": tuple(warp), "thread_inst_executed_true": tuple(thread)}
    instances |= {name: tuple(values) for name, values in more.get("instances", {}).items()}
    values = {"gpu__time_duration.sum": 10.0} | more.get("values", {})
    return Launch(kernel, values, tuple(sass), tuple(16 * i for i in range(len(sass))), instances)


class Installed:
    """Nsight Compute as it is installed: the program and, beside it, the reader of its reports."""

    def __init__(self, driver: Path, scripts: Path, folder: Path) -> None:
        self.folder = folder
        (folder / "extras/python").mkdir(parents=True)
        shutil.copy(HERE / "fake_ncu_report.py", folder / "extras/python/ncu_report.py")
        shutil.copy(HERE / "fake_ncu.py", folder / "ncu")
        (folder / "ncu").chmod(0o755)
        kernels = [f"kernel {name} {name} {' '.join(map(str, sizes))}" for name, sizes in BEHAVIOURS.items()]
        script = scripts / "script"
        script.write_text("\n".join(kernels) + "\n")
        self.env = {
            "LD_LIBRARY_PATH": str(driver),
            "FAKE_CUDA": str(script),
            "FAKE_CUDA_LOG": str(scripts / "log"),
        }
        self.say()

    def say(
        self,
        *launches: Launch,
        early: str = "",
        late: str = "==PROF== Disconnected",
        version: str = "2025.3.1.0",
        warm: bool = True,
    ) -> None:
        """What it will print before its target runs (then it ends) or after, and export."""
        report = self.folder / "report.json"
        everything = [made_launch(WARM_KERNEL), *launches] if warm else launches
        report.write_text(json.dumps([dataclasses.asdict(launch) for launch in everything]))
        said = {"version": version, "early": early, "late": late, "env": self.env, "report": str(report)}
        (self.folder / "fake.json").write_text(json.dumps(said))

    @property
    def asked(self) -> dict[str, Any]:
        """Arguments and environment of its last run."""
        return dict(json.loads((self.folder / "arguments.json").read_text()))
