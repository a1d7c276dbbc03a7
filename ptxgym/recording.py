"""Plans of a task's calls: what `run` asks for at each shape, on the GPU that it is judged on and on a tiny one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from ptxgym.build import Build
            where = at(axes)
            return plan.model_copy(update={"message": f"{where}: {plan.message}"}) if where else plan
        plans[shape(axes)] = last = plan
    return plans


def at_size(drawn: Conditions, axes: Axes) -> str:
    """Say which size of some conditions this is, unless it is the first; the numbers of a hidden one are not told."""
    if axes == drawn.cases[0].axes:
        return ""
    if any(case.hidden and case.axes == axes for case in drawn.cases):
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
    few = record_call(built, task, axes, profile.of_few_sms(max(map(math.prod, clusters), default=1)))
    return usual if isinstance(few, Failure) else few
