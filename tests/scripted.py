"""A device that computes with numpy what its script says, for tests of what lies around the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ptxgym.build import Build
from ptxgym.device.protocol import Bytes, Execution, InstructionCount, RunOptions
from ptxgym.judge import numbers
from ptxgym.plan import LaunchPlan
from ptxgym.verdict import Failure, Finding

Answer = Execution | Failure


@dataclass
class ScriptedDevice:
    """Multiplies as the task asks; `interfere` may replace any answer, or raise."""

    family: str = "wgmma"
    findings: tuple[Finding, ...] = ()
    interfere: Callable[[RunOptions, Execution], Answer] = lambda options, execution: execution
    name: str = "emulator"
    calls: list[RunOptions] = field(default_factory=list)

    def run(
        self, build: Build, plan: LaunchPlan, buffers: Mapping[str, Bytes], options: RunOptions = RunOptions()
    ) -> Answer:
        self.calls.append(options)
        m, n, k = plan.axes["M"], plan.axes["N"], plan.axes["K"]
        a, b = (
            numbers.bf16_values(buffers[name].view(np.uint16)).reshape(rows, k) for name, rows in (("A", m), ("B", n))
        )
        product = np.zeros((m, n), np.float32) if options.zero_target_results else a @ b.T
        after = {**buffers, "C": numbers.bf16_bits(product).reshape(-1).view(np.uint8)}
        counts = (
            InstructionCount(
                "gemm", self.family, self.family, 1, m * n * k // 1024, m * n * k // 32, multiply_adds=m * n * k
            ),
        )
        findings = self.findings if options.schedule == "fair" else ()
        return self.interfere(options, Execution(after, counts, findings, printed="hello\n"))
