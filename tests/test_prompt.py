"""What the prompt says of measuring, and that it says nothing of it where nothing is measured."""

from __future__ import annotations

import pytest

from ptxgym.device.cuda.model import TIERS, Tier
from ptxgym.envs import load_env
from ptxgym.prompt import Measuring, render_prompt

ENV = "PTX-Gemm-H100"


@pytest.mark.parametrize("tier", TIERS)
def test_measured_workload_and_tier_are_named(tier: Tier) -> None:
    text = render_prompt(load_env(ENV), measured=Measuring("NVIDIA H200", tier, "hardware"))
    section = text.partition("## Measurement\n")[2].partition("\n## ")[0]
    assert "NVIDIA H200" in section and "`hardware`" in section and f"`{tier}`" in section
    assert ("Nsight Compute" in section) is (tier != "rl")
    assert max(map(len, section.splitlines())) <= 110


def test_emulated_environment_says_nothing_of_measuring() -> None:
    assert "## Measurement" not in render_prompt(load_env(ENV))


def test_lines_of_a_summary_stay_lines_and_fixed_sizes_are_said_to_be_fixed() -> None:
    text = render_prompt(load_env("PTX-AttnBwdCausal-H100"))
    assert "\n- dV[j, d] = Σ_i P[i, j] · dO[i, d]\n" in text
    assert (
        "\n- `D`: always 128\n" in text and "\n- `S`: a multiple of 128, 128 to 16384, known at run time only\n" in text
    )
