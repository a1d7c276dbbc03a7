"""PPO against random search over 5,760 settings of the template gemm/h100/ring, of which 102 are right.

Both may evaluate equally many *distinct* settings; a setting that was evaluated before is free. PPO is what
`ptxgym train rllib ppo` runs, random search draws without repetition. Verdicts are kept by the hash of the text, so
that seeds share them, and a run that was ended goes on.

    python benchmarks/ppo_knobs.py run OUT [--device emulator|cuda] [--seeds 0 1 2 3 4] [--evaluations 500]
    python benchmarks/ppo_knobs.py judge --device cuda --out JUDGED.json [--limit-s 290]
    python benchmarks/ppo_knobs.py run OUT --judged JUDGED.json     # with the verdicts of a GPU elsewhere
    python benchmarks/ppo_knobs.py run OUT --foretold               # by rules, where no verdict is kept
    python benchmarks/ppo_knobs.py check OUT                        # formula and shared builds, see below
    python benchmarks/ppo_knobs.py summary OUT
    python benchmarks/ppo_knobs.py plot OUT [OUT …] --svg CURVES.svg

On the emulator builds are shared: settings that differ only in what `ring.cu.in` hands its kernel as parameters have
the same device code, so that one of them is compiled, and the others take its build and its recorded plan with their
own parameters written into it. `check` holds this, and the formula for which settings are right, against settings that
are compiled and judged one by one. `run` needs RLlib (`ptxgym[ray]`), `plot` `ptxgym[report]`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import itertools
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.ranks import mann_whitney
from benchmarks.ring_settings import (
    ARCH,
    SECRET,
    TASK,
    TEMPLATE,
    Foretold,
    Kept,
    comparable,
    compiles,
    is_right,
    settings,
    shared_builds,
)
from ptxgym.evaluator import Evaluator
from ptxgym.knobs.template import KnobTemplate, Setting, load_template
from ptxgym.store.lines import write_whole
from ptxgym.verdict import Verdict

EVALUATIONS, RIGHT_SCORE = 500, 0.5
ARMS = ("ppo", "random")
NUMBERS = ("area", "best", "mean", "right", "first_right")
NAMES = {"ppo": "PPO (RLlib)", "random": "random search"}


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


# ---- the campaign


def run(
    out: Path, device: str, seeds: Sequence[int], evaluations: int, judged: Path | None, foretold: bool = False
) -> None:
    """Both arms for some seeds; what an earlier run has finished stays."""
    from ptxgym.knobs.journal import read_journals
    from ptxgym.train.recipe import PpoRecipe, load_train_recipe
    from ptxgym.train.rllib import JOURNALS, ppo
    from ptxgym.train.run import FRONT

    template = load_template(TEMPLATE).keep(load_train_recipe("ppo", PpoRecipe).keep)
    elsewhere = {} if judged is None else read_judged(template, judged)
    sharing = shared_builds(template) if device == "emulator" else nullcontext()
    with (Foretold if foretold else Kept)(out / "verdicts", device, elsewhere) as evaluator, sharing:
        for seed in seeds:
            recipe = load_train_recipe("ppo", PpoRecipe, {"seed": seed, "evaluations": evaluations})
            folder = out / f"ppo-{seed}"
            started = time.monotonic()
            done = ppo(recipe, folder, resume=(folder / FRONT).exists(), evaluator=evaluator)
            write_arm(
                out, "ppo", seed, [(each.setting, each.score) for each in read_journals(folder / JOURNALS)],
                turns=done.metrics[-1].values["turns"], time_s=time.monotonic() - started, device=device,
            )  # fmt: skip
            if (out / f"random-{seed}.json").exists():
                continue
            drawn = [template.action(at) for at in random.Random(seed).sample(range(template.size), evaluations)]
            scores = [evaluator.evaluate(template.render(each), TASK, ARCH).score for each in drawn]
            write_arm(out, "random", seed, list(zip(map(template.setting, drawn), scores, strict=True)), device=device)


def write_arm(out: Path, arm: str, seed: int, found: Sequence[tuple[Setting, float]], **more: Any) -> None:
    scores = [score for _, score in found]
    best = max(found, key=lambda each: each[1])[0]
    write_whole(
        out / f"{arm}-{seed}.json",
        json.dumps({"arm": arm, "seed": seed, "scores": scores, "best": best, **more}) + "\n",
    )
    print(
        arm,
        seed,
        len(scores),
        {name: round(value, 4) for name, value in measures(scores, len(scores)).items()},
        flush=True,
    )


def read_judged(template: KnobTemplate, path: Path) -> dict[str, Verdict]:
    """Verdicts of another machine by the hash of the text; right settings that it did not reach get the nearest's."""
    measured = [each for each in json.loads(path.read_text())["judged"] if each["timing"]]
    unlike = [each["setting"] for each in measured if not is_right(each["setting"])]
    if unlike or not measured:
        raise SystemExit(f"{path} has no times, or times of settings that are not right, such as {unlike[:1]}")
    errors = [
        abs(each["score"] - _nearest(each["setting"], [other for other in measured if other is not each])["score"])
        for each in measured
    ]
    print(
        f"{len(measured)} measured; the nearest other foretells a score to within {statistics.fmean(errors):.3f} "
        f"on average, {max(errors):.3f} at worst",
        flush=True,
    )
    found = {}
    for setting in filter(is_right, settings(template)):
        verdict = Verdict.model_validate(_nearest(setting, measured)["verdict"])
        text = template.render(template.choose(setting))
        found[hashlib.sha256(text.encode()).hexdigest()] = verdict
    return found


def _nearest(setting: Setting, measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What was measured that has the same tile and consumers, then swizzle, then stages, then order of release."""

    def distance(each: dict[str, Any]) -> tuple[float, ...]:
        other = each["setting"]
        stages = abs(math.log2(int(setting["kStages"]) / other["kStages"]))
        differ = {name: setting[name] != other[name] for name in setting}
        tile = sum(differ[name] for name in ("kTileM", "kTileN", "kConsumers"))
        return tile, differ["kSpan"], stages, differ["kPending"], differ["kLag"]

    return min(measured, key=distance)


def best_so_far(scores: Sequence[float], number: int) -> list[float]:
    """By number of distinct evaluations; an arm that ended keeps its best."""
    curve = list(itertools.accumulate(scores[:number], max))
    return curve + [curve[-1]] * (number - len(curve))


def measures(scores: Sequence[float], number: int) -> dict[str, float]:
    """What is compared, over the first `number` distinct evaluations."""
    counted = scores[:number]
    first = next((at + 1 for at, score in enumerate(counted) if score >= RIGHT_SCORE), number + 1)
    return {
        "area": statistics.fmean(best_so_far(scores, number)),
        "best": max(counted),
        "mean": statistics.fmean(counted),
        "right": sum(score >= RIGHT_SCORE for score in counted),
        "first_right": first,
    }


def read_arms(out: Path) -> dict[str, list[dict[str, Any]]]:
    return {arm: [json.loads(path.read_text()) for path in sorted(out.glob(f"{arm}-*.json"))] for arm in ARMS}


def summary(out: Path, evaluations: int) -> dict[str, Any]:
    arms = read_arms(out)
    # PPO may end before it has spent the budget: each seed is compared at as many as both arms have evaluated.
    numbers = [min(evaluations, *(len(arms[arm][at]["scores"]) for arm in ARMS)) for at in range(len(arms["ppo"]))]
    found = {
        arm: [measures(each["scores"], number) for each, number in zip(runs, numbers, strict=True)]
        for arm, runs in arms.items()
    }
    tests = {
        name: mann_whitney([each[name] for each in found["ppo"]], [each[name] for each in found["random"]])
        for name in ("area", "best", "mean", "right")
    }
    return {
        "evaluations": numbers, **found, "u_and_p_one_sided": tests,
        "means": {arm: {name: statistics.fmean(each[name] for each in found[arm]) for name in NUMBERS} for arm in ARMS},
        "turns": [each["turns"] for each in arms["ppo"]], "best": [each["best"] for each in arms["ppo"]],
    }  # fmt: skip


def plot(folders: Sequence[Path], evaluations: int, svg: Path) -> None:
    """Best score so far, and right settings found, by distinct evaluations: mean over seeds and every run."""
    import vl_convert

    panels = []
    for out in folders:
        best, right = [], []
        for arm, runs in read_arms(out).items():
            for each in runs:
                counted = itertools.accumulate(score >= RIGHT_SCORE for score in each["scores"][:evaluations])
                found = list(counted)
                for at, value in list(enumerate(best_so_far(each["scores"], evaluations)))[::5]:
                    point = {"arm": NAMES[arm], "seed": each["seed"], "at": at + 1}
                    best.append({**point, "value": value})
                    right.append({**point, "value": found[min(at, len(found) - 1)]})
        place = "on an H200" if "h200" in out.name else "on the emulator"
        panels += [_panel(best, f"best score so far, {place}"), _panel(right, f"right settings found, {place}")]
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "concat": panels, "columns": 2, "background": "white",
        "config": {"font": "Arial, Helvetica, Liberation Sans, sans-serif", "view": {"stroke": None}},
    }  # fmt: skip
    svg.write_text(vl_convert.vegalite_to_svg(spec, vl_version="5.21") + "\n")


def _panel(points: list[dict[str, Any]], title: str) -> dict[str, Any]:
    value = {"field": "value", "type": "quantitative", "title": title.partition(",")[0]}
    encoding = {
        "x": {"field": "at", "type": "quantitative", "title": "distinct settings evaluated"},
        "y": value,
        "color": {
            "field": "arm", "type": "nominal", "title": None,
            "legend": {"orient": "bottom", "symbolOpacity": 1, "symbolStrokeWidth": 2.5},
            "scale": {"domain": list(NAMES.values()), "range": ["#1f6feb", "#c2410c"]},
        },
    }  # fmt: skip
    return {
        "title": title, "width": 360, "height": 240, "data": {"values": points},
        "layer": [
            {"mark": {"type": "line", "opacity": 0.3, "strokeWidth": 1, "interpolate": "step-after"},
             "encoding": {**encoding, "detail": {"field": "seed"}}},
            {"mark": {"type": "line", "strokeWidth": 2.5},
             "encoding": {**encoding, "y": {**value, "aggregate": "mean"}}},
        ],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("out", type=Path)
    running.add_argument("--device", choices=("emulator", "cuda"), default="emulator")
    running.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    running.add_argument("--judged", type=Path, help="of judge, on another machine")
    running.add_argument("--foretold", action="store_true", help="evaluate nothing that OUT/verdicts does not hold")
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
    summing = commands.add_parser("summary")
    summing.add_argument("out", type=Path)
    plotting = commands.add_parser("plot")
    plotting.add_argument("outs", type=Path, nargs="+")
    plotting.add_argument("--svg", type=Path, required=True)
    for each in (running, summing, plotting):
        each.add_argument("--evaluations", type=int, default=EVALUATIONS)
    chosen = parser.parse_args()
    if chosen.command == "run":
        run(chosen.out, chosen.device, chosen.seeds, chosen.evaluations, chosen.judged, chosen.foretold)
    elif chosen.command == "judge":
        judge(chosen.device, chosen.out, chosen.limit_s, chosen.at_once, chosen.wrong)
    elif chosen.command == "check":
        check(chosen.out, chosen.settings, chosen.whole)
    elif chosen.command == "summary":
        print(json.dumps(summary(chosen.out, chosen.evaluations), indent=1))
    else:
        plot(chosen.outs, chosen.evaluations, chosen.svg)


if __name__ == "__main__":
    main()
