"""The one protocol that every device speaks: a build, a plan and inputs go in, an `Execution` comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ptxgym.build.model import Build
from ptxgym.plan.model import LaunchPlan
from ptxgym.verdict import Failure, Finding

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class InstructionCount:
    """How often one instruction of the submission executed."""

    kernel: str
    form: str
    """Full PTX opcode, such as `wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16`, or the SASS opcode."""
    family: str
    """`wgmma`, `tma`, `mma.sync`, `fma`, `mbarrier`, … as `judge.evidence` sums them."""
    line: int | None
    warp: int
    """Warp executions (a warpgroup instruction counts once per warp)."""
    thread: int
    """Executions by threads whose predicate was on."""
    multiply_adds: int = 0
    """Multiply-adds done in total by these executions (0 for other instructions)."""
    site: int | None = None
    """Line of the innermost call that is not of a wrapper, or `line` itself; the emulator names it in kernels with
    `tcgen05.mma` or findings only."""


@dataclass(frozen=True)
class RunOptions:
    """How the emulator runs a plan."""

    schedule: Literal["fair", "lazy", "random"] = "fair"
    seed: int = 0
    threads: int = 0
    """Host threads; 0 means one per core. Never changes results, counts or findings."""
    zero_target_results: bool = False
    """Ablation: target matrix instructions deliver zeros."""
    warp_instruction_budget: int = 2_000_000_000
    max_findings: int = 20


@dataclass(frozen=True)
class Execution:
    """What a device did with a plan."""

    buffers: Mapping[str, Bytes]
    """Every input and output buffer after the run, as bytes."""
    counts: tuple[InstructionCount, ...] = ()
    findings: tuple[Finding, ...] = ()
    tma_bytes: int = 0
    warp_instructions: int = 0
    printed: str = ""
    wall_s: float = field(default=0.0, compare=False)


class Device(Protocol):
    """A place where plans run."""

    name: str

    def run(
        self, build: Build, plan: LaunchPlan, buffers: Mapping[str, Bytes], options: RunOptions = RunOptions()
    ) -> Execution | Failure:
        """Run `plan` on copies of `buffers` (every input and output by name, outputs poisoned by the caller).

        Returns a `Failure` where the submission is at fault: `not_emulated`, `launch_error`, `runtime_fault`, `hang`,
        `budget`.

        Raises:
            InfrastructureError: if the device itself failed.
        """
        ...
