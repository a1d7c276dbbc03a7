"""Say which folders go into the wheel; everything else stands in pyproject.toml.

The root folders hold content (tasks, environments, rewards …). A checkout reads them in place, a wheel carries them as
`ptxgym/content/<folder>`. Solutions and teaching kernels stay out, so that nothing an agent can import holds an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from setuptools import setup

CONTENT = ("agents", "configs", "envs", "knowledge", "rewards", "tasks")
LEFT_OUT = {"solutions", "examples", "__pycache__"}


def folders(root: str) -> Iterator[Path]:
    """Yield `root` and every folder below it that is shipped."""
    for folder in sorted([Path(root), *Path(root).rglob("*")]):
        if folder.is_dir() and not LEFT_OUT & set(folder.parts):
            yield folder


own = {".".join(folder.parts): str(folder) for folder in folders("ptxgym")}
content = {".".join(("ptxgym", "content", *folder.parts)): str(folder) for name in CONTENT for folder in folders(name)}

setup(packages=[*own, *content], package_dir={**own, **content}, package_data={"": ["*"]})
