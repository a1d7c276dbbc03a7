"""From a build to a launch plan: the host code runs twice in sandboxed processes that play the CUDA runtime.

The plan is what the first call of a process asks for. The process goes on as a caller's would: `run` is called at other
sizes, with other buffers, and with the first ones again, and each of these calls must ask for the same as a first one
there (`plan.later`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ptxgym import sandbox
from ptxgym.build.model import Build
from ptxgym.plan.events import RawOperation, Recording
from ptxgym.plan.host import Argument, Call, RecordLimits, at_line, failure, last_errors, recordings
from ptxgym.plan.kept import Different, Kept
from ptxgym.plan.later import Asked, compare
from ptxgym.plan.merge import Merged, NotAPlan, joined, merge
from ptxgym.plan.model import LaunchPlan
from ptxgym.plan.module import module_of
from ptxgym.plan.order import ordered
from ptxgym.plan.places import places
from ptxgym.plan.profile import DeviceProfile
from ptxgym.plan.untold import untold
from ptxgym.plan.validate import problems
from ptxgym.verdict import Diagnostic, Failure

RECORDER_REVISION = 10
"""Part of every plan; raise it when the same build gives another plan."""


def record(
    build: Build,
    arguments: Sequence[Argument],
    axes: Mapping[str, int],
    profile: DeviceProfile,
    *,
    other: LaunchPlan | None = None,
    hidden: bool = False,
    limits: RecordLimits = RecordLimits(),
    confined: bool = True,
) -> LaunchPlan | Failure:
    """Record what `run` asks of the driver.

    Args:
        build: The compiled submission.
        arguments: The pointers that `run` takes, in order.
        axes: The `int` arguments that follow, in order; the stream comes last.
        profile: The GPU that the host code is to believe in.
        other: A plan of the same build and GPU at other sizes. `run` is called there, too, after the first call, and
            must ask for the same.
        hidden: Whether `axes`, or the sizes of `other`, are hidden: then no message holds a number or a text that host
            code could choose.
        limits: Time and memory of each recording.
        confined: False goes on without a system-call filter where the machine has none (isolation level `rlimits`).

    Returns:
        The plan, or a `Failure` with status `plan_error` or `launch_error` that names call, value and way out.

    Raises:
        InfrastructureError: if the machine has no system-call filter and `confined` is true, or the recorder failed.
        UsageError: if there are more arguments than the recorder passes.
    """
    calls = [Call(arguments, axes, 1)]
    if other is not None:
        calls.append(Call(_arguments_of(other), other.axes, 2, other_sizes=True))
    calls.append(Call(arguments, axes, len(calls) + 1))
    calls.append(Call(arguments, axes, len(calls) + 1, again=1))
    both = recordings(build, calls, profile, limits, confined, hidden)
    if isinstance(both, Failure):
        return both
    session = _Session(build, calls, *both, hidden=hidden)
    first = session.asked(0)
    if isinstance(first, Failure):
        return first
    plan = session.plan(first.merged, profile, confined)
    return plan if isinstance(plan, Failure) else _with_later_calls(session, first, plan, other)


def record_twice(
    build: Build,
    arguments: Sequence[Argument],
    axes: Mapping[str, int],
    profile: DeviceProfile,
    *,
    hidden: bool = False,
) -> LaunchPlan | Failure:
    """Record two calls in one process as one plan: what the first one leaves, the second finds.

    The buffers of the first call are named `A#1`, those of the second `A`. Where `axes` are `hidden`, no message tells
    them.

    Raises:
        InfrastructureError: as `record`.
    """
    confined = sandbox.isolation().level != "rlimits"
    calls = [Call(arguments, axes, 1), Call(arguments, axes, 2)]
    both = recordings(build, calls, profile, RecordLimits(), confined, hidden)
    if isinstance(both, Failure):
        return both
    session = _Session(build, calls, *both, hidden=hidden)
    one = session.asked(0)
    if isinstance(one, Failure):
        return one
    if (incomplete := session.incomplete()) is not None:
        return incomplete
    two = session.asked(1)
    if isinstance(two, Failure):
        return two
    names = {name: f"{name}#1" for name in one.own} | dict(two.own)
    return session.plan(joined(one.merged, two.merged, names), profile, confined, calls=2)


class _Session:
    """Two recordings of the same calls."""

    def __init__(
        self, build: Build, calls: Sequence[Call], first: Recording, second: Recording, hidden: bool = False
    ) -> None:
        self.build, self.calls, self.hidden = build, calls, hidden
        self._both = (first, second)

    def incomplete(self) -> Failure | None:
        """Say that a recording has other calls than were made: the host code may have written that it ends, or begins.

        What the first call asked for can be told all the same.
        """
        for recording in self._both:
            if (begun := len(recording.calls)) != len(self.calls):
                which = f"ends in call {begun}" if begun < len(self.calls) else f"has {begun} calls"
                message = f"the record of the host code {which}, and {len(self.calls)} were made"
                return self._failure("plan.invalid", message)
        return None

    def asked(self, index: int) -> Asked | Failure:
        """Return what a call asked for; of the buffers of later calls nobody knows yet.

        Only the first may be asked for where the recordings are `incomplete`.
        """
        unknown = {name for call in self.calls[index + 1 :] if call.again is None for name in call.buffers}
        roles = {name: argument.role for call in self.calls for name, argument in call.buffers.items()}
        first, second = (
            replace(view, buffers=[buffer for buffer in view.buffers if buffer.name not in unknown])
            for view in (recording.call(index) for recording in self._both)
        )
        try:
            module = module_of(self.build)
            merged = merge(first, second, roles, module)
            merged = replace(
                merged, operations=ordered(first.ordered, merged, first.fresh, kernels_share=module.has_variables)
            )
            return Asked(merged, self.calls[index].own, first.freed)
        except NotAPlan as error:
            failed = self._failure(error.code, error.message, self.where(index, error.operation))
            which = f"in {self.calls[index]}: " if index else ""
            return failed.model_copy(update={"message": which + failed.message})

    def _failure(self, code: str, message: str, where: tuple[Diagnostic, ...] = ()) -> Failure:
        failed = failure(code, message, where=where)
        return untold(failed) if self.hidden else failed

    def where(self, index: int, operation: int | None) -> tuple[Diagnostic, ...]:
        """Return the lines of an operation of a call."""
        operations = [each for each in self._both[0].call(index).ordered if isinstance(each, RawOperation)]
        return places(self.build, operations[operation].frames) if operation is not None else ()

    def plan(self, merged: Merged, profile: DeviceProfile, confined: bool, calls: int = 1) -> LaunchPlan | Failure:
        """Return the plan of what was asked for in so many calls, if it can be replayed."""
        first = self._both[0].call(0)
        plan = LaunchPlan(
            build_key=self.build.key,
            device_profile=profile.key,
            axes=dict(self.calls[0].axes),
            buffers=merged.buffers,
            tensor_maps=merged.tensor_maps,
            functions=merged.functions,
            operations=merged.operations,
            failed_calls=tuple(f"{at_line(self.build, error)}: {error.error}: {error.why}" for error in first.errors),
            ignored_calls=tuple(f"{ignored.call} ({ignored.what})" for ignored in first.ignored),
            isolation=sandbox.isolation().level if confined else "rlimits",
            recorder_revision=RECORDER_REVISION,
        )
        for problem in problems(plan, self.build, profile, calls=calls):
            return self._failure("plan.invalid", problem)
        if not plan.launches:
            said = last_errors(self.build, first)
            return self._failure("plan.no_launch", f"`run` returned without launching a kernel{said}")
        return plan


def _with_later_calls(
    session: _Session, first: Asked, plan: LaunchPlan, other: LaunchPlan | None
) -> LaunchPlan | Failure:
    """Compare the later calls with first ones, and return the plan with what they found as it had been left."""
    if (incomplete := session.incomplete()) is not None:
        return incomplete
    models = [first] * len(session.calls)
    if other is not None:
        merged = Merged(other.buffers, other.tensor_maps, other.functions, other.operations)
        models[1] = Asked(merged, {argument.name: argument.name for argument in _arguments_of(other)})
    kept, earlier = Kept(), [first]
    for index, call in enumerate(session.calls[1:], 1):
        later = session.asked(index)
        if isinstance(later, Failure):
            return later
        try:
            compare(models[index], earlier, later, kept)
            if index == len(session.calls) - 1:
                kept.check_counters(index)
        except Different as different:
            if different.call is not None:
                index, call = different.call, session.calls[different.call]
            what = "" if session.hidden else f": {different.what}"
            message = f"{call} does not do what a first call there does{what}; {different.advice}"
            return failure("plan.later_call", message, where=session.where(index, different.operation))
        earlier.append(later)
    return plan.model_copy(update={"kept": tuple(kept.names)})


def _arguments_of(plan: LaunchPlan) -> list[Argument]:
    """Return the arguments that a plan was recorded with."""
    return [Argument(b.name, b.role, b.size_bytes) for b in plan.buffers if b.role in ("input", "output")]
