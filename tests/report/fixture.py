"""A run as the benchmark leaves it: real kernels, texts and record types; verdicts made up, by a seeded plan.

Six agents (two of them anchors), three environments (two measured, one emulated), two arms, three trajectories, four
turns; one episode failed by the machine, one refused, one that has not ended.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path

from ptxgym.agent.loop import prompt_sha256
from ptxgym.bench.recipe import Recipe
from ptxgym.store.records import CANARY as CANARY_STAND_IN
from ptxgym.store.records import EpisodeRecord, Message, Remeasurement, RunRecord, TurnRecord, Usage
from ptxgym.store.writer import RunWriter
from ptxgym.task import expected, load_task, oracle
from ptxgym.verdict import Status
from tests.report.verdicts import made_up

CANARY = "ptxgym-canary-0123456789abcdef"
ENVS = {
    "PTX-Gemm-H100": ("ptxgym/Gemm-H100-v1", "gemm", "h100"),
    "PTX-AttnBwd-H100": ("ptxgym/AttnBwd-H100-v1", "attn_bwd", "h100"),
    "PTX-Gemm-B200": ("ptxgym/Gemm-B200-v1", "gemm", "b200"),
}
ARMS = ("parameters", "contract")
PLANS = {  # outcomes by turn; each trajectory draws one
    "patient": (("wrong", "hazard", "naive", "target"), ("compile", "wrong", "target", "target")),
    "swift": (("naive", "target", "target", "target"), ("hazard", "target", "wrong", "target"), ("compile",) * 4),
    "frugal": (("compile", "compile", "naive", "naive"), ("cut", "wrong", "hang", "naive")),
    "stubborn": (("compile", "compile", "compile", "wrong"), ("none", "hang", "hang", "refused")),
}
SPEEDS = {"patient": 0.55, "swift": 0.86, "frugal": 0.02, "stubborn": 0.02, "oracle": 0.96, "naive": 0.004}
PRICES = {"patient": 9.0, "swift": 5.0, "frugal": 0.6, "stubborn": 2.0}


@dataclass(frozen=True)
class Texts:
    """The kernels of a task on an architecture."""

    naive: str
    oracle: str


def recipe() -> Recipe:
    agents = [{"use": name, "anchor": True, "trajectories": 1, "turns": 1} for name in ("oracle", "naive")]
    agents += [{"use": "openai", "label": name} for name in PLANS]
    return Recipe.model_validate(
        {
            "name": "spring-sweep",
            "summary": "four models on three environments, with and without the contract",
            "envs": list(ENVS),
            "agents": agents,
            "arms": [
                {"name": "parameters", "knowledge": ["parameters"]},
                {"name": "contract", "knowledge": ["contract"]},
            ],
            "trajectories": 3,
            "turns": 4,
        }
    )


def write_run(folder: Path, seed: int = 7) -> Path:
    """Write the run and return its folder."""
    plan = recipe()
    sampling = {"temperature": 1.0, "max_completion_tokens": 65536}
    agents = {
        each.label: {"kind": "solution", "which": each.use}
        if each.anchor
        else {
            "kind": "openai",
            "base_url": "https://models.example/v1",
            "model": f"{each.label}-2",
            "sampling": sampling,
        }
        for each in plan.agents
    }
    prompts = {
        f"{pinned}/base/{agent}/{arm}": prompt_sha256(_opening(env, CANARY_STAND_IN))
        for env, (pinned, _, _) in ENVS.items()
        for agent in (*PLANS, "oracle", "naive")
        for arm in (ARMS if agent in PLANS else ARMS[:1])
    }
    sweep: dict[str, object] = {"recipe": plan.model_dump(mode="json", exclude={"limits", "summary"}), "agents": agents}
    record = RunRecord(
        name=plan.name,
        created_at=f"2026-11-29T08:00:{seed:02d}+00:00",
        sweep_sha256=hashlib.sha256(json.dumps(sweep, sort_keys=True).encode()).hexdigest(),
        sweep=sweep,
        prompts_sha256=prompts,
        device="NVIDIA H200, emulator",
        devices={"h100": "NVIDIA H200", "b200": "emulator"},
        versions={"ptxgym": "0.1.0", "compiler": "nvcc 13.0.88", "judge": "5", "driver": "580.95.05", "numpy": "2.4.6"},
        conditions_sha256="c0" * 32,
        canary=CANARY,
        tags={"summary": plan.summary},
    )
    draw = random.Random(seed)
    with RunWriter.begin(folder, record, "a secret") as writer:
        for env in ENVS:
            for which in ("oracle", "naive"):
                _play(writer, draw, env, which, "parameters", 0, ("target" if which == "oracle" else "naive",))
            for trajectory in range(3):
                for arm in ARMS:
                    for agent, plans in PLANS.items():
                        _play(writer, draw, env, agent, arm, trajectory, draw.choice(plans))
        pinned = ENVS["PTX-Gemm-H100"][0]
        lost = f"{pinned}/base/patient/contract/3"
        writer.episode(_episode(lost, pinned, "patient", "contract", 3, (), "infra", "WorkerDied: no space left"))
        open_ = f"{pinned}/base/swift/contract/3"
        writer.turn(_turn(draw, open_, "PTX-Gemm-H100", "swift", "compile", 1, None, 0.0, False))
    return folder


def _play(
    writer: RunWriter, draw: random.Random, env: str, agent: str, arm: str, trajectory: int, plan: tuple[str, ...]
) -> None:
    pinned, task, arch = ENVS[env]
    identifier = f"{pinned}/base/{agent}/{arm}/{trajectory}"
    played: list[TurnRecord] = []
    for number, what in enumerate(plan, start=1):
        best = max((turn.score for turn in played), default=0.0)
        before = played[-1] if played else None
        record = _turn(draw, identifier, env, agent, what, number, before, best, number == len(plan))
        played.append(record)
        writer.turn(record)
    writer.episode(_episode(identifier, pinned, agent, arm, trajectory, tuple(played), "done"))
    chosen = max(played, key=lambda turn: (turn.score, -turn.turn))
    if arch == "h100" and chosen.verdict.status is Status.OK:
        writer.remeasured(
            Remeasurement(
                episode=identifier,
                turn=chosen.turn,
                epoch=1,
                verdict=made_up(draw, task, arch, chosen.tags["what"], chosen.source, SPEEDS[agent]),
                measured_at="2026-11-29T20:00:00+00:00",
            )
        )


def _turn(
    draw: random.Random,
    episode: str,
    env: str,
    agent: str,
    what: str,
    number: int,
    before: TurnRecord | None,
    best: float,
    done: bool,
) -> TurnRecord:
    _, task, arch = ENVS[env]
    source = kernel(texts(task, arch), what, number)
    verdict = made_up(draw, task, arch, what, source, SPEEDS[agent])
    gain = max(0.0, verdict.score - best)
    answer = "I will not do that." if what == "refused" else f"Turn {number}: let me try.\n\n```cuda\n{source}\n```\n"
    prompt_tokens, completion_tokens = 9000 + 7000 * (number - 1), draw.randrange(3000, 14000)
    anchor = agent not in PRICES
    messages = _opening(env, CANARY)
    solution = f"{task}/solutions/{arch}/{agent}.cu" if anchor else ""
    if anchor:
        answer, source = f"The proven solution {solution}.", ""
    if before is not None:
        messages += (Message(role="assistant", content=before.response), Message(role="user", content=before.feedback))
    return TurnRecord(
        episode=episode,
        turn=number,
        parent_turn=None if before is None else before.turn,
        messages=messages,
        response=answer,
        reasoning="" if anchor else "The loop must wait before a slot is used again …",
        finish_reason="length" if what == "cut" else "stop",
        refused=what == "refused",
        model=agent if anchor else f"{agent}-2-20260901",
        source=source,
        solution=solution,
        verdict=verdict,
        feedback=f"{verdict.message}\nScore {verdict.score:.2f}\n",
        score=verdict.score,
        reward=gain,
        terms={"score": gain * 0.75, "target": gain * 0.25},
        best_score=max(best, verdict.score),
        done=done,
        usage=Usage(cost_usd=0.0)
        if anchor
        else Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cost_usd=(prompt_tokens / 8 + completion_tokens) * PRICES[agent] / 1e6,
        ),
        started_at=f"2026-11-29T09:{number:02d}:00+00:00",
        model_s=round(draw.uniform(20, 180), 1),
        evaluate_s=round(draw.uniform(2, 9), 1),
        attempts=2 if draw.random() < 0.05 else 1,
        tags={"what": what},
    )


def _opening(env: str, canary: str) -> tuple[Message, ...]:
    return (
        Message(role="system", content=f"You write CUDA kernels. {canary}"),
        Message(role="user", content=f"# {env}\nWrite the kernel."),
    )


def _episode(
    identifier: str,
    env: str,
    agent: str,
    arm: str,
    trajectory: int,
    played: tuple[TurnRecord, ...],
    status: str,
    problem: str = "",
) -> EpisodeRecord:
    best = max(played, key=lambda turn: (turn.score, -turn.turn), default=None)
    usage = Usage(cost_usd=0.0)
    for turn in played:
        usage += turn.usage
    return EpisodeRecord(
        id=identifier,
        env=env,
        variant="base",
        agent=agent,
        arm=arm,
        trajectory=trajectory,
        seed=trajectory,
        status=status,  # type: ignore[arg-type]
        turns=len(played),
        best_score=best.score if best else 0.0,
        best_turn=best.turn if best else None,
        usage=usage,
        started_at="2026-11-29T09:00:00+00:00",
        ended_at="2026-11-29T19:30:00+00:00",
        problem=problem,
    )


_KNOWN: dict[tuple[str, str], Texts] = {}


def texts(task: str, arch: str) -> Texts:
    if (task, arch) not in _KNOWN:
        loaded = load_task(task)
        naive = loaded.source(expected(loaded, arch)[0])
        _KNOWN[task, arch] = Texts(naive, loaded.source(oracle(loaded, arch)))
    return _KNOWN[task, arch]


def kernel(known: Texts, what: str, number: int) -> str:
    """Return a kernel that could have that outcome; each turn's differs a little."""
    mark = f"// attempt {number}\n"
    if what in ("none", "refused"):
        return ""
    if what == "naive":
        return mark + known.naive
    if what == "compile":
        return mark + known.naive.replace(";", ",", 1)
    if what == "cut":
        return mark + known.oracle[: len(known.oracle) // 2]
    lines = known.oracle.splitlines()
    if what == "hazard":
        lines = [line for line in lines if "wait_group" not in line or "asm" not in line]
    if what == "wrong":
        lines = [line.replace(" + 1)", " + 2)") for line in lines]
    if what == "hang":
        lines = [line for line in lines if "expect_tx" not in line or "asm" not in line]
    return mark + "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    write_run(Path(sys.argv[1]))
