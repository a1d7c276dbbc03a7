"""GRPO with a language model of some 200,000 weights: does it learn to write settings of a kernel that are right?

The model writes a line such as `tile_n=64 stages=3 expect=16384 swizzle=128 pending=0 bias=1`. It becomes a kernel for
PTX-Gemm-H100, variant `bias`: the line's constants in front of `grpo_tiny.cu`. Of 96 settings 4 are right, and for
each tile another number of expected bytes; most others hang, race, or read what no copy wrote. Everything but the
line is what `ptxgym train grpo` does: TRL's GRPOTrainer, `KernelRollouts`, `kernel_reward`, one verdict a text.

A short SFT on settings drawn at random teaches the format, and nothing of which are right. From there each seed trains
three times: on its rewards, on its rewards shuffled within each group, and on the rewards that the first run got at
that step, dealt at random. The second control, unlike the first, cannot run dry once nothing is right any more.

    python benchmarks/grpo_tiny.py run OUT.json [--device emulator|cuda] [--seeds 5] [--steps 40]
    python benchmarks/grpo_tiny.py plot OUT.json … --svg CURVES.svg

`run` needs TRL (`pip install 'ptxgym[trl]'`), `plot` vl-convert-python (`ptxgym[report]`).
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import itertools
import json
import multiprocessing
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.ranks import mann_whitney
from ptxgym.adapters.rollout import Rollout
from ptxgym.agent.prompting import fenced
from ptxgym.evaluator import Evaluator
from ptxgym.knowledge import load_pack, template_text
from ptxgym.submission import extract

ENV, TASK, ARCH, VARIANT, SECRET = "PTX-Gemm-H100", "gemm", "h100", "bias", "grpo-tiny"
SWIZZLES = {"none": "CU_TENSOR_MAP_SWIZZLE_NONE", "128": "CU_TENSOR_MAP_SWIZZLE_128B"}
KNOBS: dict[str, tuple[str, ...]] = {
    "tile_n": ("64", "128"),
    "stages": ("1", "3"),
    "expect": ("8192", "16384", "24576"),
    "swizzle": tuple(SWIZZLES),
    "pending": ("0", "1"),
    "bias": ("0", "1"),
}
SETTINGS = [dict(zip(KNOBS, values, strict=True)) for values in itertools.product(*KNOBS.values())]
LINE = re.compile(" ".join(f"{name}=({'|'.join(values)})" for name, values in KNOBS.items()))
ASK = "Choose: " + " ".join(f"{name}={'|'.join(values)}" for name, values in KNOBS.items())
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GROUP, WARM_UP_STEPS, WARM_UP_BATCH, RATE = 32, 100, 32, 1e-3
ARMS = ("reward", "shuffled", "dealt")


def line(setting: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in setting.items())


def kernel(setting: dict[str, str]) -> str:
    constants = (
        f"constexpr int kTileN = {setting['tile_n']};\n"
        f"constexpr int kStages = {setting['stages']};\n"
        f"constexpr int kExpected = {setting['expect']};\n"
        f"constexpr CUtensorMapSwizzle kSwizzle = {SWIZZLES[setting['swizzle']]};\n"
        f"constexpr int kPending = {setting['pending']};\n"
        f"constexpr bool kBias = {setting['bias']};\n"
    )
    body = Path(__file__).with_suffix(".cu").read_text()
    return f"{template_text(load_pack(ARCH))}\n{constants}\n{body}"


def kernel_answer(text: str) -> str:
    """The answer that a line stands for; what is no line stays as it is, and is no kernel."""
    found = LINE.fullmatch(text.strip())
    return text if found is None else fenced(kernel(dict(zip(KNOBS, found.groups(), strict=True))))


class LineRollout(Rollout):
    """An episode that asks for a line, and takes it for the kernel that it stands for."""

    def opening(self) -> str:
        return ASK

    async def aanswer(self, text: str, **more: Any) -> Any:
        return await super().aanswer(kernel_answer(text), **more)


def judge_all(evaluator: Evaluator, at_once: int) -> list[float]:
    """The score of every setting; the evaluator remembers them all, so that no run judges any again."""
    gate = asyncio.Semaphore(at_once)

    async def one(setting: dict[str, str]) -> float:
        async with gate:
            text = extract(fenced(kernel(setting))).text
            return (await evaluator.aevaluate(text, TASK, ARCH, variant=VARIANT)).score

    async def all_() -> list[float]:
        return await asyncio.gather(*map(one, SETTINGS))

    return asyncio.run(all_())


def tiny_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.train_from_iterator(
        [ASK, *map(line, SETTINGS)],
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = CHATML
    return made


def tiny_model(tokenizer: Any, seed: int) -> Any:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer), hidden_size=96, intermediate_size=192, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256, tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
        )
    )  # fmt: skip


def warm_up(model: Any, tokenizer: Any, seed: int, folder: str, cpu: bool) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    rng = random.Random(seed)
    drawn = [line(rng.choice(SETTINGS)) for _ in range(WARM_UP_STEPS * WARM_UP_BATCH)]
    rows = [
        {"prompt": [{"role": "user", "content": ASK}], "completion": [{"role": "assistant", "content": each}]}
        for each in drawn
    ]
    SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=folder, per_device_train_batch_size=WARM_UP_BATCH, max_steps=WARM_UP_STEPS, learning_rate=3e-3,
            max_length=None, seed=seed, use_cpu=cpu, bf16=False, save_strategy="no", report_to=[], disable_tqdm=True,
            logging_strategy="no", gradient_checkpointing=False,
        ),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
    ).train()  # fmt: skip


def train(seed: int, steps: int, cpu: bool, evaluator: Evaluator) -> list[dict[str, Any]]:
    """Runs that begin with the same model; of each the mean score of every step, before any shuffling."""
    import torch
    import transformers
    from datasets import disable_progress_bars

    torch.set_num_threads(1)
    disable_progress_bars()
    transformers.logging.set_verbosity_error()
    tokenizer = tiny_tokenizer()
    warm = tiny_model(tokenizer, seed)
    with tempfile.TemporaryDirectory() as folder:
        warm_up(warm, tokenizer, seed, folder, cpu)
        learnt = copy.deepcopy(warm.state_dict())
        found: list[dict[str, Any]] = []
        first: list[list[float]] = []
        for arm in ARMS:
            # A new model each time: a trainer wraps the forward of the model it had, and a copy would call that one.
            model = tiny_model(tokenizer, seed)
            model.load_state_dict(learnt)
            found.append(grpo(arm, model, tokenizer, seed, steps, cpu, evaluator, folder, first))
        return found


def grpo(
    arm: str,
    model: Any,
    tokenizer: Any,
    seed: int,
    steps: int,
    cpu: bool,
    evaluator: Evaluator,
    folder: str,
    first: list[list[float]],
) -> dict[str, Any]:
    """One run; `first` holds the rewards of the first arm, step by step, which that arm writes."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from ptxgym.adapters.trl import KernelRollouts, kernel_reward

    started = time.monotonic()
    rng = random.Random(seed)
    means: list[float] = []
    right: list[float] = []
    lines: list[float] = []

    class LineRollouts(KernelRollouts):
        def _begin(self, prompt: str) -> Rollout:
            return LineRollout.of_row(row, evaluator)

    def reward(member: Any, **others: Any) -> list[float]:
        paid = [each for each in kernel_reward(member=member) if each is not None]
        if len(paid) < len(member):
            raise RuntimeError("the machine failed at an evaluation")
        means.append(statistics.fmean(paid))
        right.append(sum(each >= 0.5 for each in paid) / len(paid))
        lines.append(sum("gemm_bias" in each.texts[0] for each in member) / len(paid))
        if arm == "reward":
            first.append(paid)
            return paid
        told = list(paid if arm == "shuffled" else first[len(means) - 1])
        rng.shuffle(told)
        return told

    row = {"env": ENV, "options": {"variant": VARIANT, "turns": 1, "reward": "final"}, "prompt": ASK}
    GRPOTrainer(
        model=model,
        args=GRPOConfig(
            output_dir=folder, per_device_train_batch_size=GROUP, num_generations=GROUP, max_steps=steps,
            learning_rate=RATE, lr_scheduler_type="constant", max_completion_length=64, seed=seed, use_cpu=cpu,
            bf16=False, save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no",
        ),
        processing_class=tokenizer,
        reward_funcs=[reward],
        train_dataset=Dataset.from_list([row] * steps),
        rollout_func=LineRollouts([row], evaluator=evaluator),
    ).train()  # fmt: skip
    return {
        "arm": arm, "seed": seed, "score": means, "right": right, "lines": lines, "time_s": time.monotonic() - started,
        "weights": sum(parameter.numel() for parameter in model.parameters()),
    }  # fmt: skip


def rise(scores: Sequence[float]) -> float:
    """Mean of the last fifth of the steps minus that of the first."""
    fifth = max(1, len(scores) // 5)
    return statistics.fmean(scores[-fifth:]) - statistics.fmean(scores[:fifth])


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rises = {arm: [rise(run["score"]) for run in runs if run["arm"] == arm] for arm in ARMS}
    fifth = max(1, len(runs[0]["score"]) // 5)
    lasts = {arm: [statistics.fmean(run["score"][-fifth:]) for run in runs if run["arm"] == arm] for arm in ARMS}
    tests = {arm: mann_whitney(rises["reward"], rises[arm]) for arm in ARMS[1:]}
    return {"rise": rises, "last_fifth": lasts, "u_and_p_one_sided_against": tests}


_JOBS: list[tuple[int, int, bool, Evaluator]] = []
"""What forked processes are to do: they inherit the evaluator with its verdicts, and only they import torch."""


def _train(job: int) -> list[dict[str, Any]]:
    return train(*_JOBS[job])


def run(out: Path, device: str, seeds: int, steps: int, at_once: int, policy: str) -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    started = time.monotonic()
    evaluator = Evaluator(device, tier="rl" if device == "cuda" else "standard", secret=SECRET)
    scores = judge_all(evaluator, at_once)
    judged_s = time.monotonic() - started
    print(f"{len(scores)} settings judged in {judged_s:.0f} s", flush=True)
    for score in sorted(set(scores), reverse=True):
        print(f"  score {score:.3f}: {scores.count(score)}", flush=True)
    _JOBS.extend((seed, steps, policy == "cpu", evaluator) for seed in range(seeds))
    runs = []
    with multiprocessing.get_context("fork").Pool(at_once, maxtasksperchild=1) as pool:
        for done in pool.imap_unordered(_train, range(len(_JOBS))):
            runs.extend(done)
            for each in done:
                print(f"{each['arm']} {each['seed']}: {rise(each['score']):+.3f} in {each['time_s']:.0f} s", flush=True)
    runs.sort(key=lambda each: (each["arm"], each["seed"]))
    found = {
        "device": device, "env": ENV, "variant": VARIANT, "group": GROUP, "steps": steps, "policy": policy,
        "settings": [{"line": line(each), "score": score} for each, score in zip(SETTINGS, scores, strict=True)],
        "judged_s": judged_s, "total_s": time.monotonic() - started, "summary": summary(runs), "runs": runs,
    }  # fmt: skip
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["summary"], indent=1))


def plot(files: Sequence[Path], svg: Path) -> None:
    """Mean over seeds and every single run, a panel for each file."""
    import vl_convert

    panels = []
    for file in files:
        found = json.loads(file.read_text())
        scores = [each["score"] for each in found["settings"]]
        points = [
            {"arm": NAMES[run_["arm"]], "seed": run_["seed"], "step": step + 1, "score": value}
            for run_ in found["runs"]
            for step, value in enumerate(_smooth(run_["score"]))
        ]
        levels = [
            {"what": "best setting", "score": max(scores)},
            {"what": "settings at random", "score": statistics.fmean(scores)},
        ]
        panels.append(_panel(points, levels, "on an H200" if found["device"] == "cuda" else "on the emulator"))
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "hconcat": panels,
        "background": "white",
        "config": {"font": "Arial, Helvetica, Liberation Sans, sans-serif", "view": {"stroke": None}},
    }
    svg.write_text(vl_convert.vegalite_to_svg(spec, vl_version="5.21") + "\n")


NAMES = {
    "reward": "its own rewards",
    "shuffled": "control: its rewards shuffled within the group",
    "dealt": "control: the first run's rewards, dealt at random",
}


def _smooth(values: Sequence[float]) -> list[float]:
    """Mean over five steps, fewer at the start."""
    return [statistics.fmean(values[max(0, at - 4) : at + 1]) for at in range(len(values))]


def _panel(points: list[dict[str, Any]], levels: list[dict[str, Any]], title: str) -> dict[str, Any]:
    step = {"field": "step", "type": "quantitative", "title": "step"}
    score = {"field": "score", "type": "quantitative", "title": "mean score of a group of 32"}
    colour = {
        "field": "arm", "type": "nominal", "title": None,
        "legend": {"orient": "bottom", "labelLimit": 320, "columns": 1, "symbolOpacity": 1, "symbolStrokeWidth": 2.5},
        "scale": {"domain": list(NAMES.values()), "range": ["#1f6feb", "#c2410c", "#8a8a8a"]},
    }  # fmt: skip
    encoding = {"x": step, "y": score, "color": colour}
    return {
        "title": title, "width": 420, "height": 260,
        "layer": [
            {"data": {"values": levels}, "mark": {"type": "rule", "strokeDash": [4, 4], "color": "#777"},
             "encoding": {"y": score}},
            {"data": {"values": levels},
             "mark": {"type": "text", "align": "right", "dy": -6, "dx": -4, "color": "#555"},
             "encoding": {"y": score, "x": {"value": "width"}, "text": {"field": "what"}}},
            {"data": {"values": points}, "mark": {"type": "line", "opacity": 0.3, "strokeWidth": 1},
             "encoding": {**encoding, "detail": {"field": "seed"}}},
            {"data": {"values": points}, "mark": {"type": "line", "strokeWidth": 2.5},
             "encoding": {**encoding, "y": {**score, "aggregate": "mean"}}},
        ],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("out", type=Path)
    running.add_argument("--device", choices=("emulator", "cuda"), default="emulator")
    running.add_argument("--policy", choices=("cpu", "cuda"), default="cpu", help="where the model runs")
    running.add_argument("--seeds", type=int, default=5)
    running.add_argument("--steps", type=int, default=40)
    running.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    plotting = commands.add_parser("plot")
    plotting.add_argument("files", type=Path, nargs="+")
    plotting.add_argument("--svg", type=Path, required=True)
    chosen = parser.parse_args()
    if chosen.command == "plot":
        plot(chosen.files, chosen.svg)
    else:
        run(chosen.out, chosen.device, chosen.seeds, chosen.steps, chosen.at_once, chosen.policy)


if __name__ == "__main__":
    main()
