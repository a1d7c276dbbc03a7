"""Whole evaluations on a GPU, stage by stage: `pytest -m gpu tests/gpu/test_evaluator.py -s`, or run this file."""
# ruff: noqa: T201

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("PTXGYM_SECRET", "the tests' own secret")

from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.model import Tier
from ptxgym.evaluator import Evaluator
from ptxgym.feedback import render
from ptxgym.task import load_task
from ptxgym.verdict import Status, Verdict
from tests.gpu.small import new_text
from tests.gpu.submissions import kernel

pytestmark = pytest.mark.gpu

STORE = "  C[at] = __float2bfloat16(sum);"
BAD = {
    "wrong": (kernel("  C[at] = __float2bfloat16(1.01f * sum);"), Status.WRONG_OUTPUT),
    "out of bounds": (kernel(STORE + "\n  if (first) C[(size_t)M * N + 1000000] = C[0];"), Status.RUNTIME_FAULT),
    "hang": (
        kernel("  if (first) while (*reinterpret_cast<volatile unsigned short*>(C + at + 1) != 1) {}\n" + STORE),
        Status.HANG,
    ),
}


def texts() -> dict[str, tuple[str, Status]]:
    """Return kernels by name with the status that they must get."""
    task = load_task("gemm")
    good = {Path(s.file).stem: (task.source(s), Status.OK) for s in task.solutions["h100"]}
    return {**good, **BAD}


def judged(evaluator: Evaluator, name: str, text: str) -> Verdict:
    """Evaluate and print where the time went."""
    start = time.perf_counter()
    verdict = evaluator.evaluate(text, "gemm", "h100")
    wall_s = time.perf_counter() - start
    timing = verdict.measured.timing
    speed = (
        f"{timing.speedup:.3f} ({timing.speedup_low:.3f} to {timing.speedup_high:.3f}), {timing.candidate_us:.0f} µs, "
        f"{timing.pairs} pairs, {timing.stopped}, lock {verdict.measured.lock_held_s:.2f} s"
        if timing is not None
        else "no speed"
    )
    print(f"\n{name} [{evaluator.tier}]: {wall_s:.2f} s, {verdict.status} {verdict.code}, {verdict.score:.2f}, {speed}")
    print(f"  {verdict.message}")
    print("  " + ", ".join(f"{stage} {s:.2f}" for stage, s in verdict.measured.durations_s.items()))
    for note in verdict.notes:
        print(f"  note: {note}")
    for finding in verdict.findings[:3]:
        print(f"  {finding.source} {finding.code} line {finding.line}: {finding.message}")
    sys.stdout.flush()
    return verdict


@pytest.fixture(scope="module")
def evaluator(gpu: Gpu) -> Iterator[Evaluator]:
    with Evaluator("cuda") as shared:
        yield shared


@pytest.mark.parametrize("name", [*texts()])
def test_status(evaluator: Evaluator, name: str) -> None:
    text, status = texts()[name]
    assert judged(evaluator, name, new_text(text)).status is status


def test_target_kernel_is_counted_and_timed(evaluator: Evaluator) -> None:
    verdict = judged(evaluator, "oracle", texts()["oracle"][0])
    assert verdict.evidence is not None and verdict.evidence.coverage == 1.0 and verdict.evidence.target_ok
    assert verdict.measured.timing is not None and 0.3 < verdict.measured.timing.speedup < 1.3


def main() -> None:
    """Evaluate all kernels, the good ones again with their builds cached, and once in the other tiers."""
    all_texts = texts()
    tiers: tuple[Tier, ...] = ("standard", "rl", "publish")
    names = {"standard": ("oracle", "oracle", *all_texts, "wrong", "hang"), "rl": ("oracle", "oracle", "wrong")}
    for tier in tiers:
        with Evaluator("cuda", tier=tier) as evaluator:
            for name in names.get(tier, ("oracle",)):
                _guarded(evaluator, name, new_text(all_texts[name][0]))
            text = new_text(all_texts["oracle"][0])
            _guarded(evaluator, "oracle, new text", text)
            evaluator._verdicts.clear()
            shown = _guarded(evaluator, "oracle, build cached", text)
            if shown is not None and tier == "standard":
                print(render(shown, text))


def _guarded(evaluator: Evaluator, name: str, text: str) -> Verdict | None:
    try:
        return judged(evaluator, name, text)
    except Exception:
        print(f"\n{name}:")
        print(traceback.format_exc()[-6000:])
        sys.stdout.flush()
        return None


if __name__ == "__main__":
    main()
