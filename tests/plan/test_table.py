"""The plan as text, and as JSON and back."""

from __future__ import annotations

import pytest

from ptxgym.plan import LaunchPlan, plan_table
from tests.plan.conftest import Recorder, planned

EXPECTED = """\
plan of 3 operations on h100, mode=5 n=0

buffer      role       size
A           input      4,112 B
B           output     4,096 B
workspace0  workspace  256 B
workspace1  workspace  24 B

map   type      address  dims   strides B  box   swizzle  other
map0  BFLOAT16  A        64x64  128        64x8  128B     L2_128B
map1  BFLOAT16  B        64x32  128        64x8  128B     L2_128B

#  stream  after  operation          where                     what
0  1       -      upload             workspace0                256 B, map0 at 0, map1 at 128
1  0       0      upload             workspace1                24 B, A at 0, A+64 at 8, B at 16
2  0       -      launch by_pointer  grid 1 block 32 smem 0 B  workspace0+128, workspace1, B
"""


def test_table(features: Recorder) -> None:
    assert plan_table(planned(features(5))) == EXPECTED


def test_table_shows_no_hash_of_the_build(features: Recorder) -> None:
    plan = planned(features(0))
    name = plan.launches[0].kernel
    start = name.index("_GLOBAL__N__") + len("_GLOBAL__N__")
    text = plan_table(plan)
    assert "launch {anonymous}::templated<3>" in text and name[start : start + 8] not in text


def test_table_shows_attributes(features: Recorder) -> None:
    assert "smem 512 B cluster 4 programmatic" in plan_table(planned(features(9)))
    assert "cooperative" in plan_table(planned(features(11, n=2)))
    assert "ignored: cudaLaunchKernelExC (priority)\n" in plan_table(planned(features(9)))
    assert "ignored: cudaStreamSetAttribute (access policy window)\n" in plan_table(planned(features(13)))
    assert "dynamic: max dynamic shared memory 65,536 B" in plan_table(planned(features(14)))


def test_one_operation_is_singular(features: Recorder) -> None:
    plan = planned(features(0))
    assert plan_table(plan).startswith("plan of 2 operations on h100")
    one = plan.model_copy(update={"operations": plan.operations[:1]})
    assert plan_table(one).startswith("plan of 1 operation on h100")


@pytest.mark.parametrize("mode", [1, 2, 4, 5, 9, 12, 14, 17])
def test_json_round_trip(features: Recorder, mode: int) -> None:
    plan = planned(features(mode, n=8))
    again = LaunchPlan.model_validate_json(plan.model_dump_json())
    assert again == plan and again.hash == plan.hash
