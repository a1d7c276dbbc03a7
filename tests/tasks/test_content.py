from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ptxgym import content
from ptxgym.errors import ContentError, UnknownNameError


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(content.VARIABLE, "")
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "mine.toml").write_text('summary = "mine"\npay = "end"\nweights = {score = 2}\n')
    return tmp_path


def test_shipped_content_is_found() -> None:
    assert content.find("tasks")["gemm"] == content.builtin_root() / "tasks" / "gemm" / "task.toml"
    assert {"shaped", "final", "sparse", "ptxbench"} <= set(content.find("rewards"))
    assert list(content.find("rewards")) == sorted(content.find("rewards"))


def test_added_content_is_found_here_and_in_child_processes(mine: Path) -> None:
    assert "mine" not in content.find("rewards")
    content.add_content(mine)
    content.add_content(mine)  # twice is once
    assert content.find("rewards")["mine"] == mine / "rewards" / "mine.toml"
    code = "from ptxgym.reward import load_reward; print(load_reward('mine').weights)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "{'score': 2.0}"


def test_colliding_names_are_an_error_that_names_both(mine: Path) -> None:
    (mine / "rewards" / "shaped.toml").write_text("")
    with pytest.raises(ContentError) as caught:
        content.add_content(mine)
    assert str(mine / "rewards" / "shaped.toml") in str(caught.value)
    assert str(content.builtin_root() / "rewards" / "shaped.toml") in str(caught.value)
    assert "shaped" in content.find("rewards")  # the folder was not taken


def test_missing_folders_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContentError, match="no such folder"):
        content.add_content(tmp_path / "nowhere")
    monkeypatch.setenv(content.VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ContentError, match=r"PTXGYM_CONTENT names .*nowhere, which is no folder"):
        content.find("tasks")


def test_unknown_names_suggest_or_list() -> None:
    with pytest.raises(UnknownNameError, match="unknown task 'gem'; did you mean 'gemm'"):
        content.locate("tasks", "gem")
    with pytest.raises(UnknownNameError, match=r"unknown task 'xyzzy'; known: .*gemm"):
        content.locate("tasks", "xyzzy")


def test_files_that_are_not_toml_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("a = 1\nb = = 2\n")
    with pytest.raises(ContentError, match=r"x\.toml: .*line 2"):
        content.read_toml(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ContentError, match=r"x\.toml"):
        content.read_toml(path)
    with pytest.raises(ContentError, match=r"y\.toml"):
        content.read_toml(tmp_path / "y.toml")


def test_listing_imports_nothing_heavy() -> None:
    code = (
        "import sys, importlib.util as u, types; from pathlib import Path;"
        "package = types.ModuleType('ptxgym'); package.__path__ = [sys.argv[1]]; sys.modules['ptxgym'] = package;"
        "from ptxgym import content; content.find('envs'); content.find('tasks');"
        "print([m for m in ('pydantic', 'numpy', 'gymnasium', 'tomllib', 'difflib') if m in sys.modules])"
    )
    folder = Path(content.__file__).parent
    child = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"
