"""Times that cannot be true: device code shares a context with the events around it, and may have written over them.

The executor's clock on the host bounds them. It is late at times, when the host has other work, and never early.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ptxgym.device.cuda.timing import LEAST_CALLS
from ptxgym.device.cuda.tools import Called

EVENT_SLACK_US = 300.0
"""By how much the executor's clock may exceed the events' time: flushing L2, launching, waking up,"""
LAUNCH_SLACK_US = 20.0
"""and this for every operation of the plan;"""
EVENT_SLACK = 1.05
"""clocks differ by less."""


def contradiction(calls: Sequence[Called], operations: int, *, timed: bool) -> str | None:
    """Say how the events contradict the host's clock, or None.

    The events' time must be positive and fit into the host's, and for timed calls nearly fill it. Any call may be woken
    up late. So the latter is asked of the call that fills it best, among those that are no slower than the median: who
    wants to lower the median has to forge all of these. Of fewer than `LEAST_CALLS` it is not asked: a race makes so
    few only of what is, by its own events, too slow for its speed to pay.

    Args:
        calls: Of one plan.
        operations: Of that plan.
        timed: Whether they count for speed.
    """
    if forged := next((call for call in calls if not call.time_us > 0), None):
        return _said(forged)
    middle_us = statistics.median(call.time_us for call in calls)
    over_us = statistics.median(call.time_us - call.device_wall_us * EVENT_SLACK for call in calls)
    best = min(
        (call for call in calls if call.time_us <= middle_us),
        key=lambda call: call.device_wall_us - call.time_us * EVENT_SLACK,
    )
    missing_us = best.device_wall_us - best.time_us * EVENT_SLACK
    slack_us = EVENT_SLACK_US + LAUNCH_SLACK_US * operations
    asked = timed and len(calls) >= LEAST_CALLS
    if over_us <= LAUNCH_SLACK_US and (missing_us <= slack_us or not asked):
        return None
    return _said(best)


def _said(call: Called) -> str:
    return (
        f"the GPU's events say {call.time_us:.0f} µs, but by the clock of the host the call took "
        f"{call.device_wall_us:.0f} µs, so the events cannot be believed; kernels must not touch memory that is not "
        "theirs"
    )
