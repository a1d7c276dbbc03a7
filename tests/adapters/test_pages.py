"""The loops of `docs/trainers`, run as they stand there but for addresses, models and sizes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.chat_server import scripted_endpoint
from tests.adapters.conftest import NOTHING
from tests.adapters.tiny_policy import tiny_model, tiny_tokenizer

PAGES = Path(__file__).parents[2] / "docs" / "trainers"
pytestmark = pytest.mark.filterwarnings("ignore")  # what the libraries warn of is not ours


def block(page: str, number: int = 0, language: str = "python") -> str:
    """The n-th block of a page."""
    text = (PAGES / f"{page}.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)[number]  # type: ignore[no-any-return]


def run(text: str, **names: Any) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "page", **names}
    exec(compile(text, "page", "exec"), space)
    return space


def needs(*modules: str) -> Callable[..., Any]:
    absent = [module for module in modules if not importlib.util.find_spec(module)]
    return pytest.mark.skipif(bool(absent), reason=f"not installed: {', '.join(absent)}")


def ask_your_model(messages: list[dict[str, str]]) -> str:
    assert "PTX" in messages[0]["content"] or "CUDA" in messages[0]["content"]
    return NOTHING


@needs("skyrl_gym")
def test_skyrl() -> None:
    ended = run(block("skyrl"), ask_your_model=ask_your_model)
    assert (ended["done"], ended["step"]["reward"]) == (True, 0.0)
    assert [message["role"] for message in ended["messages"]] == ["user", "assistant", "user", "assistant"]


@needs("openenv")
def test_openenv() -> None:
    import uvicorn

    from ptxgym.adapters.openenv import make_app

    assert "--factory ptxgym.adapters.openenv:make_app" in block("openenv", language="sh")
    server = uvicorn.Server(uvicorn.Config(make_app(), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        text = block("openenv").replace("http://localhost:8000", f"http://127.0.0.1:{port}")
        ended = run(text, ask_your_model=ask_your_model)
    finally:
        server.should_exit = True
        thread.join(20)
    assert (ended["result"].done, ended["result"].reward, len(ended["messages"])) == (True, 0.0, 5)


@needs("trl")
def test_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptxgym.adapters.rollout import dataset_rows

    monkeypatch.chdir(tmp_path)
    tokenizer = tiny_tokenizer([row["prompt"] for row in dataset_rows("train", ["PTX-Gemm-H100"])])
    tiny_model(tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    text = block("trl")
    small = (
        "num_generations=2, per_device_train_batch_size=2, max_completion_length=16, max_steps=1, use_cpu=True, "
        'bf16=False, report_to=[], save_strategy="no", logging_steps=1'
    )
    for old, new in (
        ('"MODEL"', repr(str(tmp_path / "model"))),
        ("num_generations=8, max_completion_length=16384", small),
    ):
        assert old in text
        text = text.replace(old, new)
    ended = run(text)
    assert ended["trainer"].state.log_history[0]["reward"] == 0.0


@needs("verifiers")
@pytest.mark.skipif(not shutil.which("uv"), reason="verifiers starts its harness by uv, which is not installed")
def test_verifiers(tmp_path: Path) -> None:
    (tmp_path / "ptxgym_kernels.py").write_text(block("verifiers"))
    command = block("verifiers", language="sh").replace("\\\n", " ").splitlines()[1]
    with scripted_endpoint([NOTHING] * 2) as address:
        command = command.replace("http://localhost:8000/v1", address).replace("-n 2 -r 2", "-n 1 -r 1")
        assert address in command
        program, *arguments = shlex.split(command)
        ended = subprocess.run(
            [str(Path(sys.executable).with_name(program)), *arguments],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    (found,) = (tmp_path / "outputs").rglob("traces.jsonl")
    (trace,) = json.loads(found.read_text())["traces"]
    assert trace["rewards"]["ptxgym"]["score"] == 0.0 and trace["metrics"]["turns"] == 2.0


@needs("verl", "pandas", "pyarrow")
def test_verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hydra
    import pandas
    from omegaconf import OmegaConf

    monkeypatch.chdir(tmp_path)
    run(block("verl"))
    row = pandas.read_parquet("train.parquet").iloc[0]
    assert row["agent_name"] == "ptxgym" and row["env"] == "PTX-Gemm-H100" and row["options"]["variant"]
    (named,) = OmegaConf.load("agent.yaml")
    assert named.name == "ptxgym" and hydra.utils.get_class(named._target_).__name__ == "KernelAgentLoop"


@needs("nemo_gym")
def test_nemo_gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
    from omegaconf import OmegaConf

    from ptxgym.adapters.nemo_gym import AGENT, KernelServer

    monkeypatch.chdir(tmp_path)
    assert run(block("nemo_gym"))["KernelServer"] is KernelServer
    run(block("nemo_gym", 1))
    servers = OmegaConf.create(block("nemo_gym", language="yaml"))
    assert servers[AGENT].responses_api_agents.gymnasium_agent.resources_server.name in servers
    config = RolloutCollectionConfig(
        agent_name=AGENT, input_jsonl_fpath="rows.jsonl", output_jsonl_fpath="out", limit=2
    )
    rows = RolloutCollectionHelper()._preprocess_rows_from_config(config)
    assert [row["env"] for row in rows] == ["PTX-Gemm-H100"] * 2
