"""Build to LaunchPlan: the host code runs against a recording runtime, and the plan is data."""

from ptxgym.plan.host import Argument, RecordLimits
from ptxgym.plan.model import LaunchPlan
from ptxgym.plan.profile import DeviceProfile, device_profile
from ptxgym.plan.record import RECORDER_REVISION, record, record_twice
from ptxgym.plan.table import plan_table
from ptxgym.plan.validate import problems

__all__ = [
    "RECORDER_REVISION",
    "Argument",
    "DeviceProfile",
    "LaunchPlan",
    "RecordLimits",
    "device_profile",
    "plan_table",
    "problems",
    "record",
    "record_twice",
]
