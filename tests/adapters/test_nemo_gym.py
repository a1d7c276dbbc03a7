"""The adapter for NeMo Gym, against the library: its agent, its collector and its HTTP, with a model that answers by
script."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ptxgym.adapters.group import MixedConditionsError, group_advantages
from ptxgym.evaluator import Evaluator
from tests.adapters.conftest import DOOMED, NOTHING, RIGHT, FrailDevice

pytestmark = [
    pytest.mark.skipif(
        not importlib.util.find_spec("nemo_gym"), reason="not installed: ptxgym[nemo-gym], which needs Python 3.12"
    ),
    pytest.mark.filterwarnings("ignore"),  # what the library warns of is not ours
]
OPTIONS = {"variant": "k64", "turns": 2}
SCRIPTS = ((NOTHING, NOTHING), (RIGHT, NOTHING), (NOTHING, RIGHT), (RIGHT, DOOMED))
EARNED = (0.0, 0.2, 0.2)


def response(text: str) -> dict[str, Any]:
    """What a model's endpoint answers, in the Responses API."""
    said = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [said]}
    return {
        "id": "r", "created_at": 0, "model": "m", "object": "response", "output": [message], "tools": [],
        "parallel_tool_calls": True, "tool_choice": "auto",
    }  # fmt: skip


def model() -> Any:
    """An endpoint that answers by the script that the conversation's system message names."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def answer(request: Any) -> JSONResponse:
        asked = (await request.json())["input"]
        script = SCRIPTS[int(asked[0]["content"])]
        return JSONResponse(response(script[sum(message["role"] == "assistant" for message in asked)]))

    return Starlette(routes=[Route("/v1/responses", answer, methods=["POST"])])


@contextlib.asynccontextmanager
async def servers(evaluator: Evaluator) -> AsyncIterator[Any]:
    """Serve the environment, NeMo Gym's own agent and the model on loopback ports; yields a client of the three."""
    import uvicorn
    from nemo_gym import server_utils
    from nemo_gym.config_types import BaseServerConfig
    from omegaconf import OmegaConf
    from responses_api_agents.gymnasium_agent.app import GymnasiumAgent, GymnasiumAgentConfig

    from ptxgym.adapters.nemo_gym import AGENT, KernelServer
    from ptxgym.adapters.nemo_gym import GymnasiumServer as Base

    class Shared(KernelServer):
        pass

    Shared.evaluator = evaluator
    where = OmegaConf.create({})
    client = server_utils.ServerClient(
        head_server_config=BaseServerConfig(host="127.0.0.1", port=1), global_config_dict=where
    )
    run = {"host": "127.0.0.1", "port": 0, "entrypoint": "app.py"}
    agent = GymnasiumAgentConfig(
        **run, name=AGENT, resources_server={"type": "resources_servers", "name": "ptxgym"},
        model_server={"type": "responses_api_models", "name": "policy"},
    )  # fmt: skip
    resources = Shared(config=Base.model_fields["config"].annotation(**run, name="ptxgym"), server_client=client)
    agents = GymnasiumAgent(config=agent, server_client=client)
    running = []
    for name, served in (("ptxgym", resources), (AGENT, agents), ("policy", None)):
        app = model() if served is None else served.setup_webserver()
        if served is not None:
            served.setup_exception_middleware(app)
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical"))
        running.append((server, asyncio.create_task(server.serve())))
        while not server.started:
            await asyncio.sleep(0.01)
        where[name] = {"kind": {"it": {"host": "127.0.0.1", "port": server.servers[0].sockets[0].getsockname()[1]}}}
    opened = server_utils.set_global_aiohttp_client(server_utils.GlobalAIOHTTPAsyncClientConfig())
    try:
        yield client
    finally:
        await opened.close()
        server_utils._GLOBAL_AIOHTTP_CLIENT = None
        for server, task in running:
            server.should_exit = True
            await task


def with_collector(evaluator: Evaluator, use: Callable[[Any], Any]) -> Any:
    """Return what `use` makes of NeMo Gym's collector of rollouts, while the servers are up."""
    from nemo_gym.rollout_collection import RolloutCollectionHelper

    async def run() -> Any:
        async with servers(evaluator) as client:

            class Helper(RolloutCollectionHelper):
                def setup_server_client(self, head_server_config: Any = None) -> Any:
                    return client

            return await use(Helper())

    return asyncio.run(run())


def asked(script: int) -> dict[str, Any]:
    """A row that is answered by a script."""
    from ptxgym.adapters.nemo_gym import AGENT

    prompt = {"input": [{"role": "system", "content": str(script)}]}
    return {"responses_create_params": prompt, "env": "PTX-Gemm-H100", "options": OPTIONS, "agent_ref": {"name": AGENT}}


def collected(evaluator: Evaluator, scripts: Sequence[int]) -> dict[int, Any]:
    """Have NeMo Gym play one rollout for each script; return results, or what was raised."""

    async def collect(helper: Any) -> list[Any]:
        def futures() -> list[Any]:
            return [next(iter(helper.run_examples([asked(script)]))) for script in scripts]

        return await asyncio.gather(*futures(), return_exceptions=True)

    found = with_collector(evaluator, collect)
    return {
        script: each if isinstance(each, Exception) else each[1] for script, each in zip(scripts, found, strict=True)
    }


def test_rewards_of_a_group_and_a_failed_row_that_changes_no_siblings(evaluator: Evaluator) -> None:
    found = collected(evaluator, (0, 1, 2, 3))
    rewards = [found[script]["reward"] for script in (0, 1, 2)]
    assert rewards == pytest.approx(EARNED)
    assert found[3].status == 500  # from here on an infrastructure failure, which NeMo RL repeats
    assert b"this rollout has no reward: WorkerDied: gone" in found[3].response_content
    alone = collected(evaluator, (0, 1, 2))
    assert [alone[script]["reward"] for script in (0, 1, 2)] == rewards
    assert group_advantages([*rewards, None])[:3] == group_advantages(rewards)


def test_what_the_policy_wrote_and_what_it_was_told(evaluator: Evaluator) -> None:
    result = collected(evaluator, (2,))[2]
    prompt, output = result["responses_create_params"]["input"], result["response"]["output"]
    assert [message["role"] for message in prompt] == ["system", "user"] and "You have 2 turns" in prompt[1]["content"]
    assert [message["role"] for message in output] == ["assistant", "user", "assistant"]
    assert output[0]["content"][0]["text"] == NOTHING and "no kernel file" in output[1]["content"]
    assert (result["terminated"], result["truncated"]) == (True, False)
    assert result["info"]["code"] == "judge.ok" and result["info"]["metrics"]["best_score"] == 0.2
    assert result["info"]["task"] == "PTX-Gemm-H100/k64" and result["info"]["circumstances"]["device"] == "emulator"


def test_the_collector_writes_rollouts_and_aggregates_them(evaluator: Evaluator, tmp_path: Path) -> None:
    from nemo_gym.rollout_collection import RolloutCollectionConfig

    from ptxgym.adapters.nemo_gym import nemo_gym_rows

    row = next(row for row in nemo_gym_rows("train", ["PTX-Gemm-H100"]) if row["options"]["variant"] == "k64")
    row |= {"options": OPTIONS, "responses_create_params": asked(1)["responses_create_params"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    config = RolloutCollectionConfig(
        input_jsonl_fpath=str(tmp_path / "rows.jsonl"), output_jsonl_fpath=str(tmp_path / "out.jsonl"), num_repeats=3,
        upload_rollouts_to_wandb=False,
    )  # fmt: skip
    with_collector(evaluator, lambda helper: helper.run_from_config(config))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["reward"] for line in lines] == pytest.approx([0.2] * 3)
    (metrics,) = json.loads((tmp_path / "out_aggregate_metrics.json").read_text())
    assert metrics["agent_metrics"]["mean/reward"] == pytest.approx(0.2)


def served(evaluator: Evaluator) -> Any:
    """The server itself, without HTTP."""
    from unittest.mock import MagicMock

    from nemo_gym.base_resources_server import BaseResourcesServerConfig
    from nemo_gym.server_utils import ServerClient

    from ptxgym.adapters.nemo_gym import KernelServer

    config = BaseResourcesServerConfig(host="", port=0, entrypoint="", name="ptxgym")
    return KernelServer(config=config, server_client=MagicMock(spec=ServerClient))


def test_sessions_are_kept_apart_and_forgotten_at_their_end(
    evaluator: Evaluator, device: FrailDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastapi import HTTPException
    from nemo_gym.openai_utils import NeMoGymResponse

    from ptxgym.adapters import nemo_gym

    monkeypatch.setattr(nemo_gym.KernelServer, "evaluator", evaluator)
    monkeypatch.setattr(nemo_gym, "MOST_SESSIONS", 2)
    server, row = served(evaluator), {"env": "PTX-Gemm-H100", "options": OPTIONS}

    async def play() -> None:
        for session in "abc":
            await server.reset(row, session)
        assert list(server.session_state) == ["b", "c"]  # a is the oldest of three
        say = [NeMoGymResponse.model_validate(response(text)) for text in (RIGHT, NOTHING)]
        assert (await server.step(say[0], {}, "b"))[1:4] == (pytest.approx(0.2), False, False)
        feedback, reward, *ended, about = await server.step(say[1], {}, "c")
        assert "no kernel file" in feedback and (reward, ended) == (0.0, [False, False])
        assert about["circumstances"] == {}  # nothing was judged
        device.dying = True
        with pytest.raises(HTTPException) as failed:
            await server.step(NeMoGymResponse.model_validate(response(DOOMED)), {}, "c")
        assert failed.value.status_code == 503 and list(server.session_state) == ["b"]
        with pytest.raises(HTTPException, match="not known here"):
            await server.step(say[0], {}, "c")

    asyncio.run(play())


def test_mixed_conditions_are_refused(evaluator: Evaluator) -> None:
    from nemo_gym.config_types import AggregateMetricsRequest

    one, other = (
        {"reward": 0.2, "_ng_task_index": 0, "_ng_rollout_index": at,
         "info": {"task": "t", "circumstances": {"conditions": secret}}}
        for at, secret in enumerate("ab")
    )  # fmt: skip
    same = {**one, "_ng_rollout_index": 7}
    server = served(evaluator)
    metrics = asyncio.run(server.aggregate_metrics(AggregateMetricsRequest(verify_responses=[one, same])))
    assert metrics.agent_metrics["mean/reward"] == pytest.approx(0.2)
    with pytest.raises(MixedConditionsError):
        asyncio.run(server.aggregate_metrics(AggregateMetricsRequest(verify_responses=[one, other])))
