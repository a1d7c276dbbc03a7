"""Nominal device profiles."""

from __future__ import annotations

import dataclasses

import pytest

from ptxgym.errors import UnknownNameError
from ptxgym.plan import device_profile


@pytest.mark.parametrize(("key", "sms", "cc"), [("h100", 132, (9, 0)), ("h200", 132, (9, 0)), ("b200", 148, (10, 0))])
def test_nominal(key: str, sms: int, cc: tuple[int, int]) -> None:
    profile = device_profile(key)
    assert (profile.sm_count, (profile.cc_major, profile.cc_minor)) == (sms, cc)
    assert sum(profile.gpc_sms) <= sms
    assert profile.smem_optin_bytes == 227 << 10 and profile.smem_per_sm_bytes == 228 << 10
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile.sm_count = 1  # type: ignore[misc]


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match="h100, h200, b200"):
        device_profile("h1000")


def test_a_gpu_of_few_sms_has_room_for_one_cluster() -> None:
    few = device_profile("h100").of_few_sms()
    assert (few.sm_count, few.gpc_sms, few.cc_major) == (2, (2,), 9)
    assert device_profile("b200").of_few_sms(8).sm_count == 8
