"""What an audit looks at: the build, the plan at two shapes, the code of the launched kernels, five emulated runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from ptxgym.audit.kernels import KernelCode, Use, read_kernels, source_lines, uses
from ptxgym.build import Build, build
from ptxgym.cache import Cache
from ptxgym.device.protocol import Bytes, Device, Execution, RunOptions
from ptxgym.judge.conditions import Case, buffers
from ptxgym.plan import DeviceProfile, LaunchPlan, device_profile
from ptxgym.recording import recorded, shape
from ptxgym.submission import check_text
from ptxgym.task import Axes, Task, load_arch
from ptxgym.verdict import Failure, Finding

Schedule = Literal["fair", "lazy"]

SEED = 1
"""Of the inputs; an audit judges no numbers, so that anyone may know them."""
FINDINGS = 200
FEW_SMS = 2


@dataclass(frozen=True, eq=False)
class Run:
    """One emulated call."""

    axes: Axes
    schedule: Schedule
    result: Execution | Failure
    before: Mapping[str, Bytes]
    """Inputs as drawn, outputs as poisoned."""
    few_sms: bool = False
    """Whether the host code saw a GPU of `FEW_SMS`, so that a CTA of a persistent kernel gets several tiles."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the emulator found, whether the run ended well or not."""
        return self.result.findings

    @property
    def where(self) -> str:
        """The axes, and that there were few SMs."""
        axes = ", ".join(f"{name}={value}" for name, value in self.axes.items())
        return f"{axes} on {FEW_SMS} SMs" if self.few_sms else axes

    def __str__(self) -> str:
        end = "to its end" if isinstance(self.result, Execution) else f"broke off: {self.result.message}"
        return f"{self.where}, {self.schedule} completion: {end}"


@dataclass(frozen=True, eq=False)
class Facts:
    """Everything that the checks read."""

    task: Task
    profile: DeviceProfile
    shapes: tuple[Axes, ...]
    built: Build | Failure
    plans: tuple[LaunchPlan | Failure, ...] = ()
    """One per shape, as far as recording came."""
    kernels: tuple[KernelCode, ...] = ()
    readable: bool = False
    """Whether the PTX of the kernels could be read."""
    runs: tuple[Run, ...] = ()

    @property
    def recorded(self) -> tuple[LaunchPlan, ...]:
        """The plans that could be recorded."""
        return tuple(plan for plan in self.plans if isinstance(plan, LaunchPlan))

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What ended a stage: build, recording, runs."""
        ended = (self.built, *self.plans, *(run.result for run in self.runs))
        return tuple(one for one in ended if isinstance(one, Failure))

    @property
    def ended(self) -> bool:
        """Whether every run was made and came to its end."""
        return len(self.plans) == len(self.recorded) and all(isinstance(run.result, Execution) for run in self.runs)

    def uses(self, feature: str) -> tuple[Use, ...]:
        """Return the instructions of a feature in the launched kernels."""
        return tuple(uses(self.kernels, feature))

    @cached_property
    def features(self) -> frozenset[str]:
        """What the kernels and the plan use, as `Item.needs` names it."""
        found = {feature for kernel in self.kernels for feature in kernel.uses}
        for plan in self.recorded:
            found |= {"map"} if plan.tensor_maps else set()
            found |= {"swizzle"} if any(m.swizzle != "NONE" for m in plan.tensor_maps) else set()
            found |= {"cluster"} if any(launch.cluster for launch in plan.launches) else set()
            found |= (
                {"smem"}
                if any(self.smem_bytes(launch.kernel, launch.dynamic_smem_bytes) for launch in plan.launches)
                else set()
            )
        return frozenset(found)

    def smem_bytes(self, kernel: str, dynamic_bytes: int) -> int:
        """Return static and dynamic shared memory of a launch in bytes."""
        return dynamic_bytes + (self.built.kernel(kernel).static_smem_bytes if isinstance(self.built, Build) else 0)

    @cached_property
    def _lines(self) -> list[str]:
        return source_lines(self.built.source) if isinstance(self.built, Build) else []

    def source_line(self, line: int | None) -> str | None:
        """Return the text of a line of the submission."""
        return self._lines[line - 1].strip()[:200] if line and line <= len(self._lines) else None


def two_shapes(task: Task) -> tuple[Axes, Axes]:
    """Return the smallest shape of a task, and of the emulation's shapes the one that differs from it in most axes."""
    first, emulation = task.workload("schedules").axes, task.workload("emulation")

    def alike(axes: Axes) -> tuple[int, int]:
        return sum(axes[name] == first[name] for name in first), task.required_multiply_adds(axes)

    return first, min((emulation.axes, *emulation.hidden), key=alike)


def gather(text: str, task: Task, arch: str, device: Device, cache: Cache) -> Facts:
    """Build, record at two shapes, and emulate: the fair completion and the latest, the second shape also on few SMs.

    Raises:
        InfrastructureError: if the machine failed.
    """
    profile, shapes = device_profile(arch), two_shapes(task)
    refused = check_text(text)
    built = refused or build(text, declaration=task.signature.declaration(), arch=load_arch(arch).code, cache=cache)
    if isinstance(built, Failure):
        return Facts(task, profile, shapes, built)
    plans: list[LaunchPlan | Failure] = []
    for axes in shapes:
        plan = recorded(built, task, (axes,), profile)
        plans.append(plan if isinstance(plan, Failure) else plan[shape(axes)])
    launched = [launch.kernel for plan in plans if isinstance(plan, LaunchPlan) for launch in plan.launches]
    names = launched or [kernel.name for kernel in built.kernels]
    kernels = read_kernels(built, names)
    small, large = plans
    few = recorded(built, task, shapes[1:], replace(profile, sm_count=FEW_SMS, gpc_sms=(FEW_SMS,)))
    wrapped = large if isinstance(few, Failure) or large in few.values() else few[shape(shapes[1])]
    calls: list[tuple[Axes, LaunchPlan | Failure, Schedule]] = [
        (shapes[0], small, "fair"),
        (shapes[1], large, "fair"),
        (shapes[0], small, "lazy"),
        (shapes[1], wrapped, "lazy"),
    ]
    if wrapped is not large:
        calls.insert(2, (shapes[1], wrapped, "fair"))
    runs = tuple(
        _run(built, task, plan, axes, schedule, plan is wrapped and plan is not large, device)
        for axes, plan, schedule in calls
        if isinstance(plan, LaunchPlan)
    )
    return Facts(task, profile, shapes, built, tuple(plans), kernels or (), kernels is not None, runs)


def _run(
    built: Build, task: Task, plan: LaunchPlan, axes: Axes, schedule: Schedule, few_sms: bool, device: Device
) -> Run:
    given = buffers(task, Case("audit/normal", axes, "normal", SEED, hidden=False))
    options = RunOptions(
        schedule=schedule, warp_instruction_budget=task.warp_instruction_budget(axes), max_findings=FINDINGS
    )
    return Run(axes, schedule, device.run(built, plan, given, options), given, few_sms)
