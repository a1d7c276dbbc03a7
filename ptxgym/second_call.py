"""After a kernel is right when it is called first: is it right again, where it finds what the first call left?

A plan is a first call, and every replay of it finds device variables as the module has them and workspaces that nobody
wrote. Callers call again: what host code kept between calls, and what kernels left in it and in `__device__` variables,
is there, and outputs hold anything. Only a submission that keeps something, or reads memory that nobody wrote, is run
twice, on other inputs each time; outputs of the second call and workspaces hold zeros there. Each size is tried, also
the hidden one: kernels that split their work, and leave sums or flags, do so where it is large enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ptxgym.build import Build
from ptxgym.build.demangle import demangle
from ptxgym.device.protocol import Device, RunOptions
from ptxgym.judge.conditions import Case, buffers
from ptxgym.judge.correctness import compare
from ptxgym.judge.full_size import named
from ptxgym.judge.judge import Judgement, with_second_call
from ptxgym.judge.references import expect
from ptxgym.plan import DeviceProfile, LaunchPlan
from ptxgym.plan.model import BufferRef, Memset
from ptxgym.plan.module import module_of
from ptxgym.recording import Shape, record_two_calls, shape
from ptxgym.task import Task
from ptxgym.verdict import Failure, Status

_ADVICE = "write outputs whatever they hold; leave other memory as the next call needs it, or set it up in every call"


def finds_something(built: Build, plans: Iterable[LaunchPlan], judgement: Judgement) -> bool:
    """Return whether a second call may find what a first one left, or reads what it finds in its outputs."""
    reads = any(finding.code == "memory.uninitialised" for finding in judgement.findings)
    return reads or bool(module_of(built).globals) or any(plan.kept for plan in plans)


def check(
    built: Build, task: Task, profile: DeviceProfile, cases: Iterable[Case], device: Device, judgement: Judgement
) -> Judgement | Failure:
    """Run two calls in the same memory, at each size, and judge the second.

    Args:
        built: The compiled submission.
        task: What was asked for.
        profile: The task's GPU.
        cases: The second call; of those of one size, the first counts.
        device: Where.
        judgement: On the first calls, all of them right.

    Raises:
        InfrastructureError: if the machine failed.
    """
    sizes = dict[Shape, Case]()
    for case in cases:
        sizes.setdefault(shape(case.axes), case)
    for case in sizes.values():
        found = _at(built, task, profile, case, device, judgement)
        if found is not judgement:
            return found
    return judgement


def _at(
    built: Build, task: Task, profile: DeviceProfile, case: Case, device: Device, judgement: Judgement
) -> Judgement | Failure:
    """Judge the second call `case`; return `judgement` itself where it is right."""
    plan = record_two_calls(built, task, case.axes, profile, hidden=case.hidden)
    if isinstance(plan, Failure):
        return plan
    before = buffers(task, replace(case, seed=case.seed ^ 1))
    given = {**{f"{name}#1": data for name, data in before.items()}, **buffers(task, case)}
    given |= {tensor.name: np.zeros_like(given[tensor.name]) for tensor in task.outputs}
    plan = _over_zeros(plan)
    options = RunOptions(warp_instruction_budget=2 * task.warp_instruction_budget(case.axes))
    execution = device.run(built, plan, given, options)
    found = _found(built, plan)
    where = " at the hidden size" if case.hidden else f" at {named(case.axes)}"
    if isinstance(execution, Failure):
        if execution.status is Status.NOT_EMULATED:
            return judgement
        message = (
            f"A second call in the same process{where}, which finds {found}, fails: {execution.message}; {_ADVICE}"
        )
        return execution.model_copy(update={"code": f"second_call.{execution.status}", "message": message})
    for name, output in expect(task, case).outputs.items():
        compared = compare(output, execution.buffers[name], case)
        if not compared.ok:
            message = (
                f"Right when `run` is called first, but {name} is wrong in a second call{where}, which finds {found}"
            )
            return with_second_call(judgement, compared, f"{message}; {_ADVICE}")
    return judgement


def _over_zeros(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan with workspaces of zeros, as a driver often gives them, instead of the device's pattern."""
    spaces = [buffer for buffer in plan.buffers if buffer.role == "workspace" and buffer.size_bytes]
    first = [
        Memset(target=BufferRef(buffer=space.name), value=0, width_bytes=1, count=space.size_bytes) for space in spaces
    ]
    rest = [
        operation.model_copy(update={"after": tuple(earlier + len(first) for earlier in operation.after)})
        for operation in plan.operations
    ]
    return plan.model_copy(update={"operations": (*first, *rest)})


def _found(built: Build, plan: LaunchPlan) -> str:
    """Name what both calls share."""
    spaces = [buffer.name for buffer in plan.buffers if buffer.role == "workspace"]
    variables = [f"`{demangle(name)}`" for name in sorted(module_of(built).globals)]
    left = f"{', '.join([*spaces, *variables])} as the first one left it and " if spaces or variables else ""
    return f"{left}zeros in outputs and new workspaces"
