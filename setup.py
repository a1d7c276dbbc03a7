"""Say which folders go into the wheel; everything else stands in pyproject.toml.

The root folders hold content (tasks, environments, rewards …). A checkout reads them in place, a wheel carries them as
`ptxgym/content/<folder>`. Solutions and teaching kernels stay out, so that nothing an agent can import holds an answer.
"""

from pathlib import Path

from setuptools import find_packages, setup

CONTENT = ("agents", "configs", "envs", "knowledge", "rewards", "tasks")

present = [name for name in CONTENT if Path(name).is_dir()]

setup(
    packages=[*find_packages(include=["ptxgym", "ptxgym.*"]), *(f"ptxgym.content.{name}" for name in present)],
    package_dir={"ptxgym": "ptxgym", **{f"ptxgym.content.{name}": name for name in present}},
    package_data={"ptxgym": ["py.typed", "native/**/*"], **{f"ptxgym.content.{name}": ["**/*"] for name in present}},
    exclude_package_data={
        "": ["**/__pycache__/*", "**/*.pyc"],
        "ptxgym.content.tasks": [f"*/{name}/**/*" for name in ("solutions", "examples")],
    },
)
