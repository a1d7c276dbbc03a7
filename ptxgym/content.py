"""Find and load the content that a researcher edits: `tasks/`, `envs/`, `rewards/` and their kin.

A checkout keeps these folders beside the package, a wheel keeps them in `ptxgym/content/`. A user's own content lies in
the folders named by `PTXGYM_CONTENT` (separated as in `PATH`), which `add_content` extends, so that forked and spawned
processes see it too. Listing reads directories only; TOML and pydantic are imported when a file is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ptxgym.errors import ContentError, UnknownNameError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Kind = Literal["tasks", "envs", "rewards", "knowledge", "agents", "configs"]
Model = TypeVar("Model", bound="BaseModel")

VARIABLE = "PTXGYM_CONTENT"
_ENTRY: dict[str, str] = {
    "tasks": "*/task.toml",
    "envs": "*.toml",
    "rewards": "*.toml",
    "knowledge": "*/knowledge.toml",
    "agents": "*/agent.toml",
    "configs": "*.toml",
}
_SINGULAR = {
    "tasks": "task",
    "envs": "environment",
    "rewards": "reward",
    "knowledge": "knowledge pack",
    "agents": "agent",
    "configs": "configuration",
}


def builtin_root() -> Path:
    """Return the folder that holds the content shipped with ptxgym.

    Raises:
        ContentError: if neither a wheel's nor a checkout's folders are there.
    """
    package = Path(__file__).resolve().parent
    for root in (package / "content", package.parent):
        if (root / "tasks").is_dir():
            return root
    raise ContentError(f"no tasks/ folder in {package / 'content'} or {package.parent}; reinstall ptxgym")


def roots() -> tuple[Path, ...]:
    """Return all content folders: the built-in one first, then those of `PTXGYM_CONTENT` in order.

    Raises:
        ContentError: if a folder named by the variable does not exist.
    """
    found = [builtin_root()]
    for name in os.environ.get(VARIABLE, "").split(os.pathsep):
        if not name:
            continue
        root = Path(name).expanduser()
        if not root.is_dir():
            raise ContentError(f"{VARIABLE} names {name}, which is no folder; create it or correct the variable")
        if root.resolve() not in found:
            found.append(root.resolve())
    return tuple(found)


def add_content(path: str | Path) -> None:
    """Add a user's content folder for this process and those that it starts.

    Raises:
        ContentError: if `path` is no folder, or one of its names is taken already.
    """
    root = Path(path).expanduser().resolve()
    if not root.is_dir():
        raise ContentError(f"add_content({str(path)!r}): no such folder")
    before = os.environ.get(VARIABLE, "")
    if root in roots():
        return
    os.environ[VARIABLE] = os.pathsep.join(part for part in (before, str(root)) if part)
    try:
        for kind in _ENTRY:
            find(kind)  # type: ignore[arg-type]
    except ContentError:
        os.environ[VARIABLE] = before
        raise


def find(kind: Kind) -> dict[str, Path]:
    """Return the path of every entry of `kind` by name, sorted: its TOML file, in whatever root it lies.

    Raises:
        ContentError: if two folders define the same name; the message names both files.
    """
    found: dict[str, Path] = {}
    for root in roots():
        for path in sorted((root / kind).glob(_ENTRY[kind])):
            name = path.stem if _ENTRY[kind] == "*.toml" else path.parent.name
            if name in found:
                raise ContentError(
                    f"{_SINGULAR.get(kind, kind)} {name!r} is defined twice: {found[name]} and {path}; rename one"
                )
            found[name] = path
    return dict(sorted(found.items()))


def locate(kind: Kind, name: str) -> Path:
    """Return the path of the entry `name` of `kind`.

    Raises:
        UnknownNameError: if there is none; suggests the nearest names.
    """
    found = find(kind)
    if name not in found:
        raise UnknownNameError(unknown(_SINGULAR.get(kind, kind), name, found))
    return found[name]


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """Return the message for an unknown `name`: the nearest known names, or all of them."""
    import difflib

    names = list(known)
    near = {candidate.lower(): candidate for candidate in names}
    matches = [near[m] for m in difflib.get_close_matches(str(name).lower(), near, n=3, cutoff=0.5)]
    if matches:
        return f"unknown {what} {name!r}; did you mean {' or '.join(repr(m) for m in matches)}?"
    return f"unknown {what} {name!r}; known: {', '.join(sorted(names)) or 'none'}"


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file.

    Raises:
        ContentError: if the file is missing, not UTF-8, or not TOML (with line and column).
    """
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ContentError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ContentError(f"{path} is no text in UTF-8, so it is not TOML") from error
    except tomllib.TOMLDecodeError as error:
        raise ContentError(f"{path}: {error}") from error


def load(path: Path, model: type[Model], **extra: Any) -> Model:
    """Parse the TOML file `path` and validate it as `model`; `extra` adds fields that are not written in the file.

    Raises:
        ContentError: names the file, each wrong key, and what was expected there.
    """
    from pydantic import ValidationError

    data = read_toml(path)
    try:
        return model.model_validate({**data, **extra})
    except ValidationError as error:
        raise ContentError(_explain(path, model, error)) from error


def _explain(path: Path, model: type[BaseModel], error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"]) or "(whole file)"
        if item["type"] == "extra_forbidden" and len(item["loc"]) == 1:
            lines.append(unknown("key", key, model.model_fields))
        elif item["type"] == "missing":
            lines.append(f"{key}: missing")
        else:
            message = item["msg"].removeprefix("Value error, ")
            value = f", found {item['input']!r}" if not isinstance(item["input"], (dict, list)) else ""
            lines.append(f"{key}: {message}{value}")
    return f"{path}: " + "; ".join(lines)
