"""Gymnasium environments in which an agent writes CUDA C++ with inline PTX for one GPU generation.

Importing ptxgym registers every environment of `envs/` with Gymnasium, by string; everything else is imported on use.
"""

from __future__ import annotations

from ptxgym.starting import EndAtInterrupt

with EndAtInterrupt():  # what takes long to import
    from typing import TYPE_CHECKING, Any

    from ptxgym.registration import add_content, make, register_at_import

    register_at_import()

if TYPE_CHECKING:
    from ptxgym.env import KernelEnv
    from ptxgym.envs import EnvConfig, load_env
    from ptxgym.episode import Episode, Turn
    from ptxgym.evaluator import Evaluator
    from ptxgym.spaces import Source
    from ptxgym.task import Task, load_task
    from ptxgym.variants import load_variant
    from ptxgym.verdict import Verdict

__version__ = "0.1.0"

__all__ = [
    "EnvConfig",
    "Episode",
    "Evaluator",
    "KernelEnv",
    "Source",
    "Task",
    "Turn",
    "Verdict",
    "__version__",
    "add_content",
    "load_env",
    "load_task",
    "load_variant",
    "make",
]

_HOMES = {
    "EnvConfig": "envs",
    "Episode": "episode",
    "Evaluator": "evaluator",
    "KernelEnv": "env",
    "Source": "spaces",
    "Task": "task",
    "Turn": "episode",
    "Verdict": "verdict",
    "load_env": "envs",
    "load_task": "task",
    "load_variant": "variants",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ptxgym' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"ptxgym.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)
