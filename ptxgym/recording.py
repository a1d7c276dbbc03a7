"""Plans of a task's calls: what `run` asks for at each shape, on the GPU that it is judged on and on a tiny one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ptxgym.build import Build
from ptxgym.judge.conditions import Conditions
from ptxgym.plan import Argument, DeviceProfile, LaunchPlan, record, record_twice
from ptxgym.task import Axes, Task
from ptxgym.verdict import Failure

Shape = tuple[tuple[str, int], ...]
"""Axes in the order of the entry point."""


def shape(axes: Axes) -> Shape:
    """Return what a plan is kept under."""
    return tuple(axes.items())


def record_call(
    built: Build,
    task: Task,
    axes: Axes,
    profile: DeviceProfile,
    other: LaunchPlan | None = None,
    *,
    hidden: bool = False,
) -> LaunchPlan | Failure:
    """Record the plan of one call, as on the GPU of `profile`; `other` is one at other sizes, called in between.

    Where one of the sizes is `hidden`, a failure does not tell it.
    """
    return record(built, _arguments(task, axes), axes, profile, other=other, hidden=hidden)


def record_two_calls(
    built: Build, task: Task, axes: Axes, profile: DeviceProfile, *, hidden: bool = False
) -> LaunchPlan | Failure:
    """Record a call and another one in the same process, as one plan; a failure does not tell `hidden` sizes."""
    return record_twice(built, _arguments(task, axes), axes, profile, hidden=hidden)


def _arguments(task: Task, axes: Axes) -> list[Argument]:
    sizes = task.sizes_bytes(axes)
    return [
        *(Argument(tensor.name, "input", sizes[tensor.name]) for tensor in task.inputs),
        *(Argument(tensor.name, "output", sizes[tensor.name]) for tensor in task.outputs),
    ]


def recorded(
    built: Build, task: Task, shapes: Iterable[Axes], profile: DeviceProfile, drawn: Conditions | None = None
) -> dict[Shape, LaunchPlan] | Failure:
    """Record one plan per distinct shape, each beside a call at the last public one before it.

    So the sizes of a hidden shape are in no other process than its own. Stops at the first failure, whose message
    begins with the sizes that it came at, as the conditions `drawn` name them.
    """
    plans: dict[Shape, LaunchPlan] = {}
    last: LaunchPlan | None = None
    for axes in shapes:
        if shape(axes) in plans:
            continue
        hidden = drawn is not None and is_hidden(drawn, axes)
        plan = record_call(built, task, axes, profile, last, hidden=hidden)
        if isinstance(plan, Failure):
            where = at_size(drawn, axes) if drawn is not None else ""
            return plan.model_copy(update={"message": f"{where}: {plan.message}"}) if where else plan
        plans[shape(axes)] = plan
        last = last if hidden else plan
    return plans


def is_hidden(drawn: Conditions, axes: Axes) -> bool:
    """Return whether this is the hidden size of some conditions."""
    return any(case.hidden and case.axes == axes for case in drawn.cases)


def at_size(drawn: Conditions, axes: Axes) -> str:
    """Say which size of some conditions this is, unless it is the first; the numbers of a hidden one are not told."""
    if axes == drawn.cases[0].axes:
        return ""
    if is_hidden(drawn, axes):
        return "At the hidden size"
    return f"At {', '.join(f'{axis} = {size}' for axis, size in axes.items())}"


def on_few_sms(
    built: Build, task: Task, axes: Axes, profile: DeviceProfile, plans: Mapping[Shape, LaunchPlan]
) -> LaunchPlan:
    """Return the plan of a GPU with few SMs, where persistent CTAs take more than one tile, as at the measured size.

    A submission that cannot be launched there keeps its plan: it may well need more of a GPU.
    """
    usual = plans[shape(axes)]
    compiled_in = {kernel.name: kernel.cluster for kernel in built.kernels}
    clusters = [launch.cluster or compiled_in.get(launch.kernel) or (1, 1, 1) for launch in usual.launches]
    tiny = profile.of_few_sms(max(map(math.prod, clusters), default=1))
    few = record_call(built, task, axes, tiny, hidden=True)
    return usual if isinstance(few, Failure) else few
