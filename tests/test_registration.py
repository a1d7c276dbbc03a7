"""What `import ptxgym` does, and what it must not do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

import ptxgym
from ptxgym import content
from ptxgym.envs import StopRule, env_names, load_env
from ptxgym.errors import ContentError, UnknownNameError, UsageError
from ptxgym.registration import pinned_id, register_envs
from tests.conftest import CHECKOUT

HEAVY = ("pydantic", "rich", "typer", "torch", "cupy", "ray", "wandb", "openai", "scipy", "asyncio", "concurrent")


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")]), **variables}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd="/")


def test_import_adds_few_modules_and_none_that_is_heavy() -> None:
    done = run_python(
        "import sys, gymnasium; before = set(sys.modules); import ptxgym; print(*sorted(set(sys.modules) - before))"
    )
    assert done.returncode == 0, done.stderr
    added = done.stdout.split()
    assert not [name for name in added if name.partition(".")[0] in HEAVY]
    own = {name for name in added if name.startswith("ptxgym")}
    assert own == {"ptxgym", "ptxgym.content", "ptxgym.errors", "ptxgym.registration", "ptxgym.starting"}
    assert len(added) < 30


def test_every_file_of_envs_is_registered_plain_and_pinned() -> None:
    assert env_names()
    for name in env_names():
        config = load_env(name)
        for env_id in (name, config.pinned):
            spec = gym.spec(env_id)
            assert spec.entry_point == "ptxgym.env:KernelEnv" and spec.kwargs == {"env": name}
            assert spec.nondeterministic and spec.max_episode_steps is None
        assert load_env(config.pinned) == config
    assert pinned_id("PTX-Gemm-H100", 3) == "ptxgym/Gemm-H100-v3"


def test_gymnasium_finds_the_id_through_the_module_prefix_in_a_fresh_interpreter() -> None:
    done = run_python("import gymnasium as gym; print(gym.make('ptxgym:PTX-Gemm-H100').unwrapped.config.name)")
    assert done.stdout.strip() == "PTX-Gemm-H100", done.stderr


def test_registering_again_is_silent(recwarn: pytest.WarningsRecorder) -> None:
    register_envs()
    assert not recwarn.list


def test_public_names_are_imported_on_use() -> None:
    for name in ptxgym.__all__:
        assert getattr(ptxgym, name) is not None
    assert set(dir(ptxgym)) == set(ptxgym.__all__)
    with pytest.raises(AttributeError, match="Evaluater"):
        _ = ptxgym.Evaluater


def _own_content(folder: Path, name: str, text: str) -> Path:
    (folder / "envs").mkdir(parents=True)
    (folder / "envs" / f"{name}.toml").write_text(text)
    return folder


def test_a_user_s_environment_needs_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(content.VARIABLE, "")
    root = _own_content(tmp_path, "PTX-Mine-H100", 'revision = 2\ntask = "gemm"\narch = "h100"\nturns = 1\n')
    ptxgym.add_content(root)
    try:
        assert gym.spec("ptxgym/Mine-H100-v2").kwargs == {"env": "PTX-Mine-H100"}
        assert ptxgym.make("PTX-Mine-H100").unwrapped.config.turns == 1  # type: ignore[attr-defined]
    finally:
        for env_id in ("PTX-Mine-H100", "ptxgym/Mine-H100-v2"):
            gym.registry.pop(env_id)
    done = run_python(
        "import ptxgym, gymnasium; print('PTX-Mine-H100' in gymnasium.registry)", PTXGYM_CONTENT=str(root)
    )
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('task = "gemm"\narch = "h100"\n', "revision: must be an integer from 1, found None"),
        ('revision = "one"\n', "found 'one'"),
        ("revision = \n", "PTX-Bad-H100.toml"),
    ],
)
def test_malformed_environment_is_named_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, match: str
) -> None:
    monkeypatch.setenv(content.VARIABLE, "")
    with pytest.raises(ContentError, match=match):
        ptxgym.add_content(_own_content(tmp_path, "PTX-Bad-H100", text))
    assert os.environ[content.VARIABLE] == "", "the folder stays out, so that others can still be added"


def test_a_wrong_variable_is_an_error_of_the_import_with_its_name() -> None:
    wrong = run_python("import ptxgym", PTXGYM_CONTENT="/nope")
    assert wrong.returncode == 1
    assert wrong.stderr.splitlines()[-1].startswith("ptxgym.errors.ContentError: PTXGYM_CONTENT names /nope, which is")
    assert run_python("import ptxgym", PTXGYM_CONTENT="").returncode == 0


def test_unknown_key_and_value_of_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'revision = 1\ntask = "gemm"\narch = "h100"\ntrns = 3\nstop = "soon"\n'
    monkeypatch.setenv(content.VARIABLE, str(_own_content(tmp_path, "PTX-Odd-H100", text)))
    with pytest.raises(ContentError) as caught:
        load_env("PTX-Odd-H100")
    assert "did you mean 'turns'" in str(caught.value) and "stop must be" in str(caught.value)
    with pytest.raises(UnknownNameError, match="did you mean"):
        load_env("PTX-Gemm-H10")
    with pytest.raises(UnknownNameError, match="which has 'ptxgym/Gemm-H100-v1'"):
        load_env("ptxgym/Gemm-H100-v9")
    assert load_env("ptxgym/Gemm-H100-v1").name == "PTX-Gemm-H100", "another file's faults do not matter"


@pytest.mark.parametrize("text", ["", "always", "speedup", "speedup:", "speedup:0", "speedup:nan", "speedup:inf"])
def test_stop_rule_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="stop must be"):
        StopRule.parse(text)


def test_stop_rule_accepts() -> None:
    assert StopRule.parse("speedup:1.25").speedup == 1.25
    assert StopRule.parse("never").speedup is None
