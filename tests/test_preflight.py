"""What `make` says on a machine that lacks something."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT

TOOLS = ("sh", "basename", "cut", "git", "g++")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder that is all of PATH: the usual tools and python3."""
    for tool in TOOLS:
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    _script(tmp_path / "python3", f'exec {sys.executable} "$@"')
    return tmp_path


def _script(path: Path, body: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def _old_python(path: Path) -> None:
    _script(path, 'case "$1" in -V) echo "Python 3.9.2";; *) exit 1;; esac')


def preflight(machine: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(machine), **variables}
    script = str(CHECKOUT / ".ci" / "preflight.sh")
    return subprocess.run([str(machine / "sh"), script], capture_output=True, text=True, env=env, cwd="/")


def test_complete_machine_answers_with_its_python(machine: Path) -> None:
    done = preflight(machine)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(machine / "python3"), "")


@pytest.mark.parametrize("tool", ["g++", "git"])
def test_missing_tool_is_named_with_its_package(machine: Path, tool: str) -> None:
    (machine / tool).unlink()
    done = preflight(machine)
    assert done.returncode == 1 and done.stdout == ""
    assert f"apt-get install {tool}\n" in done.stderr


def test_everything_that_is_missing_is_named_at_once(machine: Path) -> None:
    for tool in ("g++", "git", "python3"):
        (machine / tool).unlink()
    assert "apt-get install python3 python3-venv g++ git\n" in preflight(machine).stderr


def test_python_without_venv_names_the_package_of_its_version(machine: Path) -> None:
    no_venv = 'case "$2" in *ensurepip*) exit 1;; *) exit 0;; esac'
    _script(machine / "python3", no_venv)
    assert "apt-get install python3-venv\n" in preflight(machine).stderr
    _old_python(machine / "python3")
    _script(machine / "python3.12", no_venv)
    assert "apt-get install python3.12-venv\n" in preflight(machine).stderr


def test_old_python_is_passed_over_or_reported(machine: Path) -> None:
    _old_python(machine / "python3")
    done = preflight(machine)
    assert done.returncode == 1
    assert "needs Python 3.11 or newer; python3 here is 3.9.2" in done.stderr
    _script(machine / "python3.13", f'exec {sys.executable} "$@"')
    assert preflight(machine).stdout.strip() == str(machine / "python3.13")


def test_python_and_compiler_may_be_chosen(machine: Path) -> None:
    _script(machine / "mine", f'exec {sys.executable} "$@"')
    (machine / "g++").rename(machine / "clang++")
    done = preflight(machine, PYTHON="mine", CXX="clang++")
    assert done.stdout.strip() == str(machine / "mine")


def test_make_prints_what_preflight_says(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(CHECKOUT / name, tmp_path / name)
    (tmp_path / ".ci").mkdir()
    shutil.copy(CHECKOUT / ".ci" / "preflight.sh", tmp_path / ".ci")
    env = {**os.environ, "CXX": "no-such-compiler"}
    done = subprocess.run(["make", "demo"], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode != 0
    assert "apt-get install g++" in done.stderr
    assert not (tmp_path / ".venv").exists()
