"""Tell Gymnasium about every environment in `envs/`, by string, importing nothing that an environment needs to run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym

from ptxgym import content
from ptxgym.errors import ContentError, UnknownNameError, UsageError
from ptxgym.starting import starts_command

ENTRY_POINT = "ptxgym.env:KernelEnv"
VECTOR_ENTRY_POINT = "ptxgym.vector:KernelVectorEnv"
"""What `gym.make_vec` makes where no mode is given."""


def pinned_id(name: str, revision: int) -> str:
    """Return the id that keeps its meaning: `PTX-Gemm-H100`, revision 1 → `ptxgym/Gemm-H100-v1`."""
    return f"ptxgym/{name.removeprefix('PTX-')}-v{revision}"


def register_envs() -> None:
    """Register every environment of the content folders that Gymnasium does not know yet, plain and pinned.

    The plain id (`PTX-Gemm-H100`) follows the newest revision. No `max_episode_steps`: an episode terminates by its own
    turn limit, and truncation is kept for failures of the machine.

    Raises:
        ContentError: if `PTXGYM_CONTENT` names a missing folder, or a file lacks its revision.
    """
    fresh = {name: _revision(path) for name, path in content.find("envs").items() if name not in gym.registry}
    for name, revision in fresh.items():
        for env_id in (name, pinned_id(name, revision)):
            gym.register(
                id=env_id,
                entry_point=ENTRY_POINT,
                vector_entry_point=VECTOR_ENTRY_POINT,
                nondeterministic=True,
                kwargs={"env": name},
            )


def register_at_import() -> None:
    """Register every environment; where the command `ptxgym` is what imports us, leave faults of the content to it.

    A command that needs the content meets the same fault again, and can tell of it in one line.

    Raises:
        ContentError: as `register_envs`, in any other program.
    """
    try:
        register_envs()
    except ContentError:
        if not starts_command():
            raise


def add_content(path: str | Path) -> None:
    """Add a user's content folder (`tasks/`, `envs/`, `rewards/` …) and register its environments, or change nothing.

    Raises:
        ContentError: if `path` is no folder, one of its names is taken already, or an environment lacks its revision.
    """
    before = os.environ.get(content.VARIABLE, "")
    content.add_content(path)
    try:
        register_envs()
    except ContentError:
        os.environ[content.VARIABLE] = before
        raise


def make(env_id: str, **overrides: Any) -> gym.Env[Any, Any]:
    """Make an environment, as `gymnasium.make` does.

    Args:
        env_id: Such as `PTX-Gemm-H100`, or pinned `ptxgym/Gemm-H100-v1`.
        **overrides: Arguments of `KernelEnv`, such as `turns=4` or `reward="final"`, and those of `gymnasium.make`.

    Raises:
        UnknownNameError: if no environment has that id; suggests the nearest.
        UsageError: if an argument is not acceptable, such as `max_episode_steps`: that is what `turns` says.
    """
    if not isinstance(env_id, str):
        raise UnknownNameError(f"the id of an environment is a text such as 'PTX-Gemm-H100', not {env_id!r}")
    env_id = env_id.removeprefix("ptxgym:")
    if env_id not in gym.registry:
        known = [name for name, spec in gym.registry.items() if spec.entry_point == ENTRY_POINT]
        raise UnknownNameError(content.unknown("environment", env_id, known))
    if "max_episode_steps" in overrides:  # Gymnasium would cut an episode off that its prompt calls longer
        steps = overrides["max_episode_steps"]
        raise UsageError(f"{env_id}: max_episode_steps is not accepted; turns rule instead: pass turns={steps}")
    return gym.make(env_id, **overrides)


def _revision(path: Path) -> int:
    revision = content.read_toml(path).get("revision")
    if not isinstance(revision, int) or revision < 1:
        raise ContentError(f"{path}: revision: must be an integer from 1, found {revision!r}")
    return revision
