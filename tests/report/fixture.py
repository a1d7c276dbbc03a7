"""A run as the benchmark leaves it: real kernels, texts and record types; verdicts made up, by a seeded plan.

Six agents (two of them anchors), three environments (two measured, one emulated), two arms, three trajectories, four
turns; one episode failed by the machine, one refused, one that has not ended.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ptxgym.agent.loop import prompt_sha256
from ptxgym.bench.recipe import Recipe
from ptxgym.store.records import CANARY as CANARY_STAND_IN
from ptxgym.store.records import EpisodeRecord, Message, Remeasurement, RunRecord, TurnRecord, Usage
from ptxgym.store.writer import RunWriter
from ptxgym.task import expected, load_task, oracle
from ptxgym.verdict import (
    Diagnostic,
    Evidence,
    FamilyCount,
    Finding,
    Measured,
    OutputError,
    Party,
    Provenance,
    Severity,
    Stage,
    Status,
    Timing,
    Verdict,
)

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
WAIT = "wgmma.wait_group"


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
    pinned, _, arch = ENVS[env]
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
                verdict=_verdict(draw, env, agent, chosen.tags["what"], chosen.source),
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
    verdict = _verdict(draw, env, agent, what, source)
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


def _verdict(draw: random.Random, env: str, agent: str, what: str, source: str) -> Verdict:
    _, task, arch = ENVS[env]
    measured = arch == "h100"
    status, stage, code, message = _WORDS[what]
    right, target = status is Status.OK, what == "target"
    never_ran = stage in (Stage.SUBMISSION, Stage.BUILD)
    timing = None
    if right and measured:
        speed = SPEEDS[agent] * draw.uniform(0.8, 1.1) if target else 0.004 * draw.uniform(0.9, 1.1)
        timing = Timing(
            speedup=speed, speedup_low=speed * 0.99, speedup_high=speed * 1.01, candidate_us=730 / speed,
            baseline_us=730.0, baseline="cuBLASLt", pairs=24,
        )  # fmt: skip
    share = 0.0 if timing is None else max(0.0, min(1.0, 1 + 0.2 * (timing.speedup - 1) * 3))
    score = {"wrong": 0.1}.get(what, 0.0) if not right else 0.2 if not target else round(0.5 + 0.5 * share, 3)
    errors = {"naive": 1e-3, "target": 1e-3, "wrong": 0.7}
    return Verdict(
        stage=stage,
        status=status,
        code=code,
        message=message,
        score=score,
        outputs=tuple(_output(name, errors[what]) for name in ("dQ", "dK")[: 1 + (task == "attn_bwd")])
        if what in errors
        else (),
        evidence=_evidence(target, measured) if what in errors else None,
        findings=tuple(_findings(what, source)),
        diagnostics=tuple(_diagnostics(what, source)),
        provenance=Provenance(
            ptxgym="0.1.0",
            task=task,
            task_revision=1,
            arch=arch,
            source_sha256=hashlib.sha256(source.encode()).hexdigest(),
            device=None if never_ran else "NVIDIA H200" if measured else "emulator",
            tier="standard" if measured and not never_ran else None,
            judge_revision=5,
            emulator_revision="abc123",
        ),
        measured=Measured(durations_s={"build": 1.0}, timing=timing),
    )


_WORDS = {
    "target": (Status.OK, Stage.JUDGE, "ok", ""),
    "naive": (Status.OK, Stage.JUDGE, "ok.no_target", "Right, but no target instruction did any of the arithmetic."),
    "wrong": (Status.WRONG_OUTPUT, Stage.JUDGE, "wrong_output.tile", "The output is wrong in whole tiles."),
    "hazard": (
        Status.HAZARD, Stage.JUDGE, "async.overwrite",
        "TMA load issued by warp 0 writes shared 0x400, which the wgmma of warpgroup 1 may still be reading.",
    ),
    "hang": (Status.HANG, Stage.EXECUTE, "hang.barrier", "Warp 1 waits for a barrier that nobody completes."),
    "compile": (Status.COMPILE_ERROR, Stage.BUILD, "build.nvcc", "expected a ';'"),
    "cut": (
        Status.REJECTED, Stage.SUBMISSION, "submission.truncated_response",
        "The answer was cut off at the limit of tokens; write less, or raise the limit.",
    ),
    "none": (Status.REJECTED, Stage.SUBMISSION, "submission.no_code", "The answer holds no kernel."),
    "refused": (Status.REJECTED, Stage.SUBMISSION, "submission.no_code", "The answer holds no kernel."),
}  # fmt: skip


def _output(name: str, error: float) -> OutputError:
    wrong = error > 0.01
    return OutputError(
        name=name, ok=not wrong, relative_error=error, relative_budget=4e-3, worst_tile_error=error * 2,
        tile_budget=8e-3, worst_region=f"{name}[128:192, 0:64]" if wrong else None,
        pattern="whole tiles" if wrong else None, explanations=("a tile is transposed",) if wrong else (),
        closeness=0.5 if wrong else 1.0,
    )  # fmt: skip


def _evidence(target: bool, measured: bool) -> Evidence:
    families = {
        "alu": FamilyCount(warp_instructions=41_230, thread_instructions=1_319_360),
        "ld": FamilyCount(warp_instructions=8_192, thread_instructions=262_144),
        "tma": FamilyCount(warp_instructions=512, thread_instructions=512),
    }
    if target:
        families["wgmma"] = FamilyCount(warp_instructions=2_048, thread_instructions=65_536, multiply_adds=1 << 28)
    else:
        families["fma"] = FamilyCount(warp_instructions=90_112, thread_instructions=2_883_584, multiply_adds=1 << 28)
    return Evidence(
        source="ncu" if measured else "emulator", workload="m4096" if measured else "small",
        required_multiply_adds=1 << 28, target_multiply_adds=(1 << 28) * target,
        other_multiply_adds=(1 << 28) * (not target), coverage=float(target), target_ok=target, families=families,
        explanation=None if target else "no wgmma instruction executed; fma did 100 % of the multiply-adds",
    )  # fmt: skip


def _findings(what: str, source: str) -> Iterator[Finding]:
    if what == "hazard":
        lines = source.splitlines()
        load = next(
            (at for at, text in enumerate(lines, start=1) if "tma_load(" in text or "cp.async.bulk" in text), 40
        )
        yield Finding(
            code="async.overwrite", severity=Severity.ERROR, count=608, line=load, message=_WORDS["hazard"][3],
            parties=(
                Party(who="TMA load of warp 0", did="writes 16,384 bytes at shared 0x400", line=load),
                Party(who="wgmma of warpgroup 1", did="reads shared 0x400", line=load + 14),
            ),
            remedy="wgmma.commit_group and wgmma.wait_group before the buffer is released",
        )  # fmt: skip
    if what == "hang":
        yield Finding(code="barrier.incomplete", severity=Severity.ERROR, message="nobody completes it", line=None)


def _diagnostics(what: str, source: str) -> Iterator[Diagnostic]:
    if what == "compile":
        line = next((at for at, text in enumerate(source.splitlines(), start=1) if "," in text), 1)
        yield Diagnostic(severity=Severity.ERROR, message="expected a ';'", line=line, column=3)
        yield Diagnostic(
            severity=Severity.WARNING, message="variable 'row' was declared but never referenced", line=line + 6
        )


if __name__ == "__main__":
    import sys

    write_run(Path(sys.argv[1]))
