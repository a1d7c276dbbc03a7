"""The Python files of a task's folder: `reference.py` and `baselines.py`, what they define, and how they are loaded."""

from __future__ import annotations

import functools
import hashlib
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

from ptxgym.errors import ContentError


class ReferenceModule(Protocol):
    """What a task's `reference.py` defines. Functions take `xp` (numpy or cupy), float32 inputs by name, and axes."""

    def reference(self, xp: Any, inputs: dict[str, Any], axes: dict[str, int]) -> dict[str, Any]:
        """Return the outputs in float64 (or float32 where float64 is too slow)."""
        ...

    def ideal(self, xp: Any, inputs: dict[str, Any], axes: dict[str, int], to_bf16: Any) -> dict[str, Any]:
        """Return the outputs of an ideal BF16 algorithm: float32 accumulation, each rounding made by `to_bf16`."""
        ...

    def accumulation(self, xp: Any, inputs: dict[str, Any], axes: dict[str, int]) -> dict[str, Any]:
        """Return, per element, what float32 accumulation in any order may lose, truncating accumulators included."""
        ...

    def rounding(self, xp: Any, inputs: dict[str, Any], axes: dict[str, int]) -> dict[str, Any]:
        """Return, per element, by how much intermediate roundings move it that each algorithm places in its own way.

        Optional. They are independent, so they average out over an output, but may decide in a single tile.
        """
        ...

    def predictors(
        self, xp: Any, inputs: dict[str, Any], axes: dict[str, int], outputs: dict[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Return outputs of trivial programs, by predictor: zeros, means, closed forms. `outputs` is the reference."""
        ...

    def derived(self, xp: Any, inputs: dict[str, Any], axes: dict[str, int]) -> dict[str, Any]:
        """Return the inputs that follow from drawn ones, in float64; only asked of tasks that have such inputs."""
        ...


class BaselineModule(Protocol):
    """What a task's `baselines.py` defines."""

    BASELINES: dict[str, Callable[[dict[str, Any], dict[str, int]], Any]]
    """Vendor libraries by name: each prepares a call on torch tensors, seen in their logical order of axes."""


def load_reference(path: Path, settings: Mapping[str, bool | str], *, derives: bool) -> ReferenceModule:
    """Load the reference at `path`, as `settings` of a variant want it.

    Args:
        path: `reference.py` of a task's folder.
        settings: Handed to its function `with_settings`, where there are any.
        derives: Whether the task has inputs that it must derive.

    Raises:
        ContentError: if the file is missing or lacks a function.
    """
    module = _configured(path, settings)
    required = ["reference", "ideal", "accumulation", "predictors"]
    for name in required + ["derived"] * derives:
        if not callable(getattr(module, name, None)):
            raise ContentError(f"{path}: function {name} is missing")
    return cast(ReferenceModule, module)


def load_baselines(path: Path, settings: Mapping[str, bool | str]) -> BaselineModule:
    """Load the vendor libraries at `path`, as `settings` of a variant want them; see `load_reference`.

    Raises:
        ContentError: if the file is missing or lacks a function.
    """
    return cast(BaselineModule, _configured(path, settings))


@functools.lru_cache(maxsize=64)
def _module(path: Path) -> ModuleType:
    """Import a module of a task's folder.

    All tasks of a content folder form a package, so that those of a family share code: `from ..attention import blocks`
    reads `tasks/attention/blocks.py`, a folder without `task.toml`.
    """
    if not path.is_file():
        raise ContentError(f"{path}: missing")
    tasks = path.parent.parent
    package = f"ptxgym_tasks_{hashlib.sha256(str(tasks).encode()).hexdigest()[:8]}"
    if package not in sys.modules:
        sys.modules[package] = ModuleType(package, f"Tasks in {tasks}.")
        sys.modules[package].__path__ = [str(tasks)]
    importlib.invalidate_caches()  # a folder may be newer than what an earlier import saw
    return importlib.import_module(f"{package}.{path.parent.name}.{path.stem}")


def _configured(path: Path, settings: Mapping[str, bool | str]) -> Any:
    """Return the module, or what its `with_settings` makes of `settings`."""
    module = _module(path)
    if not settings:
        return module
    make = getattr(module, "with_settings", None)
    if not callable(make):
        raise ContentError(f"{path}: function with_settings is missing, which takes {', '.join(settings)}")
    return make(**settings)
