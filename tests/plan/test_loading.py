"""Libraries that do not load, and what their constructors may not do."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxgym.plan import LaunchPlan, device_profile, record
from ptxgym.verdict import Failure
from tests.plan.conftest import ARGUMENTS, DECLARATION, LIMITS, compiled, failed, planned

KERNEL = "#include <cuda_runtime.h>\n__global__ void plain(float* out) { out[0] = 1; }\n"
LAUNCH = "plain<<<1, 32, 0, stream>>>(B);"


def recorded(before: str, body: str, confined: bool = True) -> LaunchPlan | Failure:
    """Compile and record a submission with `before` at file scope."""
    product = compiled(f"{KERNEL}{before}\n{DECLARATION} {{ {body} {LAUNCH} }}\n")
    return record(product, ARGUMENTS, {"mode": 0, "n": 0}, device_profile("h100"), limits=LIMITS, confined=confined)


def test_library_calls_are_named() -> None:
    failure = failed(recorded('extern "C" int cublasCreate_v2(void**);', "void* handle; cublasCreate_v2(&handle);"))
    assert failure.code == "plan.unresolved_symbol"
    assert "`cublasCreate_v2`" in failure.message and "not allowed" in failure.message


def test_constructors_run_confined() -> None:
    before = '#include <cstdio>\nstatic int made = [] { return std::fopen("/tmp/ptxgym-ctor", "w") != nullptr; }();'
    failure = failed(recorded(before, ""))
    assert failure.code == "plan.host_file" and "/tmp/ptxgym-ctor" in failure.message
    assert not Path("/tmp/ptxgym-ctor").exists()


def test_constructors_may_compute() -> None:
    before = "#include <vector>\nstatic std::vector<int> table(100, 7);"
    plan = planned(recorded(before, "if (table[3] != 7) return;"))
    assert plan.isolation in ("full", "seccomp")


def test_without_a_filter_the_level_says_so() -> None:
    assert planned(recorded("", "", confined=False)).isolation == "rlimits"


@pytest.mark.parametrize("call", ["cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);", "cudaDeviceReset();"])
def test_a_refused_call_is_named(call: str) -> None:
    failure = failed(recorded("", call))
    assert failure.code == "plan.refused_call" and failure.message.startswith(call.split("(")[0])
