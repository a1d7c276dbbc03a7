"""The wheel: holds content and native sources, no answers, and works away from the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import ptxgym
from ptxgym import native
from tests.conftest import CHECKOUT

CONTENT = ("agents", "configs", "envs", "knowledge", "rewards", "tasks")
SHIPPED = ("ptxgym", *CONTENT, "pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy of the checkout, so that nothing is left behind in it."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SHIPPED:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, folder / "copy" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / "copy" / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(folder / "copy")], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but what the wheel holds."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run_installed(installed: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` where ptxgym can only come from the wheel."""
    front = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "PYTHONPATH": front}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd="/")


def test_wheel_holds_every_source_and_content_file_and_no_answer(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    suffixes = {".py", ".cpp", ".hpp", ".def", ".toml", ".typed", ".j2", ".css", ".js"}
    expected = {str(file.relative_to(CHECKOUT)) for file in (CHECKOUT / "ptxgym").rglob("*") if file.suffix in suffixes}
    for folder in CONTENT:
        for file in (CHECKOUT / folder).rglob("*"):
            inside = file.relative_to(CHECKOUT)
            if file.is_file() and not {"solutions", "examples", "__pycache__"} & set(inside.parts):
                expected.add(f"ptxgym/content/{inside}")
    assert expected - names == set()
    assert not [name for name in names if "solutions/" in name or "examples/" in name or name.endswith((".cu", ".pyc"))]
    assert {name.partition("/")[0] for name in names} == {"ptxgym", f"ptxgym-{ptxgym.__version__}.dist-info"}


def test_installed_wheel_lists_shows_and_makes(installed: Path) -> None:
    done = run_installed(
        installed,
        "import gymnasium as gym, ptxgym; from ptxgym import content, native\n"
        "print(ptxgym.__file__); print(content.builtin_root()); print(sorted(native.targets()))\n"
        "env = gym.make('PTX-Gemm-H100'); print(env.reset()[0]['prompt'].splitlines()[0])",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == str(installed / "ptxgym" / "__init__.py")
    assert lines[1] == str(installed / "ptxgym" / "content")
    assert lines[2] == str(sorted(native.targets()))
    assert lines[3].startswith("# Dense matrix product")
    told = run_installed(
        installed,
        "import gymnasium as gym, ptxgym\n"
        "print(gym.make('PTX-Gemm-H100', knowledge=['templates']).reset()[0]['prompt'])",
    )
    assert "wgmma_ss" in told.stdout, told.stderr


def test_installed_wheel_loads_agents_with_their_templates(installed: Path) -> None:
    done = run_installed(
        installed,
        "from ptxgym.agent import agent_names, load_agent\n"
        "print(*agent_names()); print(*load_agent('openai', api_key_env='').prompting.templates)",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["naive", "openai", "oracle", "replay", "folded", "opening", "system", "turn"]


@pytest.mark.parametrize("command", [["demo"], ["verify", "--all"]])
def test_installed_wheel_says_that_kernels_need_a_checkout(installed: Path, command: list[str]) -> None:
    code = f"import sys; sys.argv = ['ptxgym', *{command}]; from ptxgym.cli import main; main()"
    done = run_installed(installed, code)
    assert (done.returncode, done.stdout) == (2, ""), "before anything is built"
    assert re.match(r"ptxgym: task \w+ has no file solutions/", done.stderr)
    assert "clone the repository" in done.stderr and "site-packages" not in done.stderr
    assert str(installed) not in done.stderr and done.stderr.count("\n") == 1


def test_metadata_names_the_supported_versions_and_pins_the_toolchain() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    assert {line.partition(">")[0] for line in project["dependencies"]} == {
        "gymnasium",
        "numpy",
        "pydantic",
        "typer",
        "rich",
    }
    assert "gymnasium>=1.2.2,<2" in project["dependencies"]
    assert all("==13." in line for line in project["optional-dependencies"]["toolchain"])
