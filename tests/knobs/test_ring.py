"""The template for GEMM on Hopper: how many settings are right, by a second formula and by the emulator."""

from __future__ import annotations

import random
from typing import cast

import pytest

from ptxgym.evaluator import Evaluator
from ptxgym.knobs import KnobTemplate, load_template
from ptxgym.knobs.template import Setting

NAME = "gemm/h100/ring"
BEST: Setting = {
    "kTileM": 128, "kTileN": 256, "kConsumers": 2, "kStages": 4, "kSpan": 128, "kMode": 1, "kStride": 64, "kStep": 2,
    "kExpect": 49152, "kArrivals": 2, "kPending": 1, "kLag": 1,
}  # fmt: skip


def right(template: KnobTemplate) -> list[Setting]:
    """Settings that are right, built from tiles up, not sieved from all."""
    found: list[Setting] = []
    for tile_m, tile_n, consumers in [
        (64, 128, 1), (64, 192, 1), (64, 256, 1), (128, 128, 1), (128, 192, 1),
        (128, 128, 2), (128, 192, 2), (128, 256, 2), (256, 128, 2), (256, 192, 2),
    ]:  # fmt: skip
        slot_bytes = 64 * 2 * (tile_m + tile_n)
        for stages in (2, 3, 4, 6):
            if stages * slot_bytes > 226 * 1024 - 128:  # of 227 KiB one aligns the tiles, 128 bytes are barriers
                continue
            for span, mode, stride in [(64, 2, 32), (128, 1, 64)]:
                for pending, lag in [(0, 0), (0, 1), (1, 1)]:
                    found.append(
                        {
                            "kTileM": tile_m, "kTileN": tile_n, "kConsumers": consumers, "kStages": stages,
                            "kSpan": span, "kMode": mode, "kStride": stride, "kStep": 2, "kExpect": slot_bytes,
                            "kArrivals": consumers, "kPending": pending, "kLag": lag,
                        }
                    )  # fmt: skip
    for setting in found:
        template.choose(setting)
    return found


def test_few_of_many_settings_are_right() -> None:
    template = load_template(NAME)
    count = len(right(template))
    assert (template.size, count) == (69_120, 204)
    assert template.size >= 2000 and count / template.size <= 0.1
    assert f"{template.size:,} settings, of which {count} are right" in template.summary


def test_the_benchmark_counts_alike() -> None:
    from benchmarks.ring_settings import is_right, settings

    template = load_template(NAME)
    sieved = [template.choose(setting) for setting in settings(template) if is_right(setting)]
    assert sorted(sieved) == sorted(template.choose(setting) for setting in right(template))


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({}, "ok", "judge.ok"),
        ({"kTileM": 64, "kTileN": 192, "kConsumers": 1, "kArrivals": 1, "kExpect": 32768, "kSpan": 64, "kMode": 2,
          "kStride": 32, "kStages": 6, "kPending": 0, "kLag": 0}, "ok", "judge.ok"),
        ({"kTileM": 256}, "compile_error", "build.syntax"),
        ({"kStages": 6}, "compile_error", "build.syntax"),
        ({"kExpect": 57344}, "hang", "emulator.deadlock"),
        ({"kExpect": 40960}, "hazard", "mbarrier.tx_overflow"),
        ({"kArrivals": 1}, "hang", "emulator.deadlock"),
        ({"kLag": 0}, "hazard", "async.overwrite"),
        ({"kStride": 32}, "wrong_output", "judge.wrong_output"),
        ({"kStep": 1}, "wrong_output", "judge.wrong_output"),
        ({"kMode": 2}, "wrong_output", "judge.wrong_output"),
    ],
)  # fmt: skip
def test_each_knob_fails_in_its_own_way(evaluator: Evaluator, change: Setting, status: str, code: str) -> None:
    template = load_template(NAME)
    verdict = evaluator.evaluate(template.render(template.choose({**BEST, **change})), "gemm", "h100")
    assert (verdict.status, verdict.code) == (status, code), verdict.message
    assert (verdict.score == 0.5) == (status == "ok")


@pytest.mark.slow
def test_the_formula_is_right_on_a_sample(evaluator: Evaluator) -> None:
    template = load_template(NAME)
    sound = {template.choose(setting) for setting in right(template)}
    rng = random.Random(11)
    drawn = [*rng.sample(sorted(sound), 10), *(template.action(rng.randrange(template.size)) for _ in range(30))]
    for action in drawn:
        verdict = evaluator.evaluate(template.render(action), "gemm", "h100")
        assert (verdict.score == 0.5) == (action in sound), cast(object, template.setting(action))
