"""PPO against random search over the 69,120 settings of the template gemm/h100/ring, of which 204 are right.

Both may evaluate equally many *distinct* settings; a setting that was evaluated before is free. PPO is what
`ptxgym train rllib configs/train/ppo.toml` runs; random search draws without repetition. Verdicts are kept in a folder
by the hash of the text, so that seeds share them.

    python benchmarks/ppo_knobs.py run OUT [--device emulator|cuda] [--seeds 5] [--evaluations 300]
    python benchmarks/ppo_knobs.py judge --device cuda --out JUDGED.json [--limit-s 290]
    python benchmarks/ppo_knobs.py replay OUT JUDGED.json        # `run`, with the scores of another machine
    python benchmarks/ppo_knobs.py check OUT                     # formula and shared builds against whole evaluations
    python benchmarks/ppo_knobs.py plot OUT [OUT …] --svg CURVES.svg

On the emulator builds are shared: settings that differ only in what `ring.cu.in` hands its kernel as parameters have
the same device code, so that one of them is compiled, and the others take its build and its recorded plan with their
own parameters written into it. `check` holds this, and the formula for which settings are right, against settings that
are compiled and judged one by one. `run` and `replay` need RLlib (`ptxgym[ray]`), `plot` `ptxgym[report]`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import random
import re
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ptxgym import pipeline, recording
from ptxgym.evaluator import Evaluator
from ptxgym.knobs.template import KnobTemplate, Setting, load_template
from ptxgym.store.lines import write_whole
from ptxgym.verdict import Verdict

TEMPLATE, TASK, ARCH, SECRET = "gemm/h100/ring", "gemm", "h100", "ppo-knobs"
PARAMETERS = ("kStages", "kLag", "kArrivals", "kExpect", "kStep", "kStride", "kMode")
"""Knobs that reach the kernel as parameters, in the order of the kernel's `Schedule`."""
SLOT_K_BYTES = 128
"""Of a row of either operand in a slot."""


# ---- which settings are right, by what the template says


def slot_bytes(setting: Setting) -> int:
    return (int(setting["kTileM"]) + int(setting["kTileN"])) * SLOT_K_BYTES


def compiles(setting: Setting) -> bool:
    """Rows, registers and shared memory."""
    rows = int(setting["kTileM"]) // int(setting["kConsumers"])
    sums = rows // 64 * int(setting["kTileN"]) // 2
    shared_bytes = int(setting["kStages"]) * slot_bytes(setting) + 1024 + 128
    return rows % 64 == 0 and sums <= 192 and shared_bytes <= 227 * 1024


def is_right(setting: Setting) -> bool:
    return (
        compiles(setting)
        and setting["kMode"] == {128: 1, 64: 2}[int(setting["kSpan"])]  # descriptors name TMA's swizzle
        and int(setting["kStride"]) * 16 == 8 * int(setting["kSpan"])  # eight rows of a span make an atom
        and setting["kStep"] == 2  # 16 columns of BF16 are 32 bytes
        and setting["kExpect"] == slot_bytes(setting)
        and setting["kArrivals"] == setting["kConsumers"]  # one arrival of each
        and not (setting["kPending"] == 1 and setting["kLag"] == 0)  # or slots are released while they are read
    )


def settings(template: KnobTemplate) -> Iterator[Setting]:
    return (template.setting(template.action(index)) for index in range(template.size))


# ---- verdicts, kept and shared


class Kept(Evaluator):
    """Keeps verdicts in a folder by the hash of the text: for every seed, and for a run that goes on."""

    def __init__(self, folder: Path, device: str, **more: Any) -> None:
        super().__init__(device, secret=SECRET, **more)
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def evaluate(self, text: str, *asked: Any, **more: Any) -> Verdict:
        path = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
        if not path.exists():
            write_whole(path, super().evaluate(text, *asked, **more).model_dump_json())
        return Verdict.model_validate_json(path.read_bytes())


_LINE = r"^constexpr int {} = (\d+);$"


def read_knob(text: str, name: str) -> int:
    found = re.search(_LINE.format(name), text, re.MULTILINE)
    assert found is not None, name
    return int(found[1])


def with_knobs(text: str, values: Mapping[str, int]) -> str:
    for name, value in values.items():
        text = re.sub(_LINE.format(name), f"constexpr int {name} = {value};", text, flags=re.MULTILINE)
    return text


@contextmanager
def shared_builds(template: KnobTemplate) -> Iterator[None]:
    """Compile one text of those that share device code, for evaluations one after the other in this process."""
    whole_build, whole_record = pipeline.build, recording.record
    common = {name: int(knob.choices[0]) for knob in template.knobs if (name := knob.name) in PARAMETERS}
    asked: list[Setting] = [{}]
    failures: dict[str, Any] = {}

    def build(text: str, **more: Any) -> Any:
        setting = {knob.name: read_knob(text, knob.name) for knob in template.knobs}
        asked[0] = setting
        if compiles(setting):
            return whole_build(with_knobs(text, common), **more)
        # Assertions fail by tile, consumers and stages alone.
        others = {knob.name: int(knob.choices[0]) for knob in template.knobs}
        kept = ("kTileM", "kTileN", "kConsumers", "kStages")
        representative = with_knobs(text, {name: value for name, value in others.items() if name not in kept})
        if representative not in failures:
            failures[representative] = whole_build(representative, **more)
        return failures[representative]

    def record(*of: Any, **more: Any) -> Any:
        plan = whole_record(*of, **more)
        return plan if not hasattr(plan, "operations") else _scheduled(plan, asked[0])

    pipeline.build, recording.record = build, record
    try:
        yield
    finally:
        pipeline.build, recording.record = whole_build, whole_record


def _scheduled(plan: Any, setting: Setting) -> Any:
    """The plan with the parameters of `setting`, as its own host code would have asked for them."""
    (launch,) = plan.operations
    (function,) = plan.functions
    smem_bytes = int(setting["kStages"]) * slot_bytes(setting) + 1024
    schedule = launch.params[2].model_copy(
        update={"data": struct.pack("<7I", *(int(setting[name]) for name in PARAMETERS)).hex()}
    )
    launch = launch.model_copy(
        update={
            "dynamic_smem_bytes": smem_bytes,
            "params": (*launch.params[:2], schedule, *launch.params[3:]),
        }
    )
    function = function.model_copy(update={"max_dynamic_smem_bytes": smem_bytes})
    return plan.model_copy(update={"operations": (launch,), "functions": (function,)})


def comparable(verdict: Verdict) -> dict[str, Any]:
    """What does not depend on which text of those with the same device code was compiled."""
    whole = verdict.deterministic()
    del whole["provenance"], whole["plan"]
    return whole


# ---- judging on a GPU


def judge(device: str, out: Path, limit_s: float, at_once: int, wrong: int) -> None:
    """Score and speed of all right settings in random order, then of some that are wrong and compile."""
    started = time.monotonic()
    template = load_template(TEMPLATE)
    rng = random.Random(0)
    all_ = list(settings(template))
    right = [each for each in all_ if is_right(each)]
    rng.shuffle(right)
    asked = [*right, *rng.sample([each for each in all_ if compiles(each) and not is_right(each)], wrong)]
    found: list[dict[str, Any]] = []
    with Evaluator(device, tier="rl" if device == "cuda" else "standard", secret=SECRET) as evaluator:

        def one(setting: Setting) -> dict[str, Any] | None:
            if time.monotonic() - started > limit_s:
                return None
            verdict = evaluator.evaluate(template.render(template.choose(setting)), TASK, ARCH)
            timing = verdict.measured.timing
            return {
                "setting": setting, "expected_right": is_right(setting), "score": verdict.score,
                "status": verdict.status, "code": verdict.code,
                "timing": None if timing is None else timing.model_dump(mode="json"),
                "verdict": json.loads(verdict.model_dump_json()), "at_s": time.monotonic() - started,
            }  # fmt: skip

        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            for done in pool.map(one, asked):
                if done is not None:
                    found.append(done)
                    if len(found) % 10 == 0:
                        print(f"{len(found)} judged in {time.monotonic() - started:.0f} s", flush=True)
                        _write_judged(out, device, found)
    _write_judged(out, device, found)
    timed = [each for each in found if each["timing"]]
    print(f"{len(found)} of {len(asked)} judged in {time.monotonic() - started:.0f} s, {len(timed)} timed")
    for each in sorted(timed, key=lambda each: -each["timing"]["speedup"])[:5]:
        print(f"  {each['timing']['speedup']:.3f} × the best baseline, score {each['score']:.3f}: {each['setting']}")


def _write_judged(out: Path, device: str, found: Sequence[Mapping[str, Any]]) -> None:
    write_whole(out, json.dumps({"device": device, "template": TEMPLATE, "judged": list(found)}) + "\n")


# ---- the check of formula and shared builds


def check(out: Path, number: int, whole: int) -> None:
    """Judge random settings by shared builds, and some of them by builds of their own; compare and say what differs."""
    template = load_template(TEMPLATE)
    rng = random.Random(1)
    all_ = list(settings(template))
    compiling = [each for each in all_ if compiles(each)]
    right = [each for each in all_ if is_right(each)]
    # Of a fair sample one in 340 is right, so that right settings and those one knob away are drawn by themselves.
    near = [each for each in compiling if not is_right(each) and _near(template, each)]
    drawn = [*rng.sample(all_, number // 3), *rng.sample(right, number // 3), *rng.sample(near, number // 3)]
    rng.shuffle(drawn)
    statuses: dict[str, int] = {}
    wrong_formula, wrong_sharing = [], []
    with Kept(out / "verdicts", "emulator") as kept, shared_builds(template):
        verdicts = []
        for setting in drawn:
            verdict = kept.evaluate(template.render(template.choose(setting)), TASK, ARCH)
            verdicts.append(verdict)
            statuses[verdict.status] = statuses.get(verdict.status, 0) + 1
            if (verdict.score >= 0.5) != is_right(setting) or (verdict.status == "compile_error") == compiles(setting):
                wrong_formula.append({"setting": setting, "status": verdict.status, "message": verdict.message})
    with Evaluator("emulator", secret=SECRET) as evaluator:
        for setting, shared in list(zip(drawn, verdicts, strict=True))[:whole]:
            own = evaluator.evaluate(template.render(template.choose(setting)), TASK, ARCH)
            if comparable(own) != comparable(shared):
                wrong_sharing.append({"setting": setting, "own": comparable(own), "shared": comparable(shared)})
    found = {
        "settings": len(drawn), "right": sum(map(is_right, drawn)), "statuses": statuses, "compiled_whole": whole,
        "formula_differs": wrong_formula, "sharing_differs": wrong_sharing,
    }  # fmt: skip
    write_whole(out / "check.json", json.dumps(found, indent=1) + "\n")
    print(json.dumps({**found, "formula_differs": len(wrong_formula), "sharing_differs": len(wrong_sharing)}, indent=1))


def _near(template: KnobTemplate, setting: Setting) -> bool:
    return any(is_right({**setting, knob.name: choice}) for knob in template.knobs for choice in knob.choices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    judging = commands.add_parser("judge")
    judging.add_argument("--device", choices=("emulator", "cuda"), default="cuda")
    judging.add_argument("--out", type=Path, required=True)
    judging.add_argument("--limit-s", type=float, default=290.0, help="nothing is begun after it")
    judging.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    judging.add_argument("--wrong", type=int, default=24, help="wrong settings, after the right ones")
    checking = commands.add_parser("check")
    checking.add_argument("out", type=Path)
    checking.add_argument("--settings", type=int, default=150)
    checking.add_argument("--whole", type=int, default=30, help="of these, compiled one by one")
    chosen = parser.parse_args()
    if chosen.command == "judge":
        judge(chosen.device, chosen.out, chosen.limit_s, chosen.at_once, chosen.wrong)
    elif chosen.command == "check":
        check(chosen.out, chosen.settings, chosen.whole)


if __name__ == "__main__":
    main()
