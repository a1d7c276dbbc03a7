"""Kernels whose schedule is left open: templates with knobs, and an environment that turns them.

Actions are numbers, observations are numbers, so that any reinforcement-learning library or optimiser can search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptxgym.knobs.template import Knob, KnobTemplate, load_template, template_names

if TYPE_CHECKING:
    from ptxgym.knobs.env import KnobEnv

__all__ = ["Knob", "KnobEnv", "KnobTemplate", "load_template", "template_names"]


def __getattr__(name: str) -> Any:
    """Import the environment, and Gymnasium with it, on first use: templates need neither."""
    if name != "KnobEnv":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ptxgym.knobs.env import KnobEnv

    return KnobEnv
