"""SFT on a Fixit set with a language model of some 430,000 weights: does its loss fall, do its greedy answers parse?

Model and tokenizer are made in place. The tokenizer may learn whole lines, so that a conversation of 20,000 tokens of a
large model has some 2,000. The recipe is that of `ptxgym train sft`, with all weights instead of adapters: a model
of this size has no knowledge that adapters could build on.

    python -m tests.fixit FOLDER                              # makes a set by scripted teachers, FOLDER/rows
    python benchmarks/sft_tiny.py run FOLDER/rows OUT [--steps 200] [--hidden 48] [--layers 2] [--device cuda]
    python benchmarks/sft_tiny.py plot OUT --svg LOSS.svg

`run` needs TRL (`pip install 'ptxgym[trl]'`), `plot` vl-convert-python (`ptxgym[report]`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptxgym.fixit.pack import read_rows
from ptxgym.fixit.records import Row
from ptxgym.fixit.sampling import shuffled
from ptxgym.submission import extract
from ptxgym.train.recipe import SftRecipe
from ptxgym.train.run import METRICS, Metrics

SEED = 0
AT_ONCE = 32
"""Answers in one batch."""
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer(texts: Sequence[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "merged_with_previous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    raw.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=8000,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = CHATML
    return made


def make_model(rows: Sequence[Row], folder: Path, hidden: int, layers: int) -> int:
    """Write a model with random weights, as a user would name one; return how many it has."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer([message.content for row in rows for message in (*row.prompt, *row.completion)])
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=32768, tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def greedy(folder: Path, rows: Sequence[Row], device: str) -> dict[str, int]:
    """Of the answers to the rows' prompts: how many hold a kernel file, and how many the one that was to be learnt."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder).to(device)
    chats = [[{"role": message.role, "content": message.content} for message in row.prompt] for row in rows]
    longest = max(len(tokenizer(row.completion[0].content)["input_ids"]) for row in rows)
    parse = same = 0
    for start in range(0, len(rows), AT_ONCE):
        ids = tokenizer.apply_chat_template(
            chats[start : start + AT_ONCE],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        ).to(device)
        with torch.no_grad():
            out = model.generate(**ids, do_sample=False, max_new_tokens=longest + 64)[:, ids["input_ids"].shape[1] :]
        for row, answer in zip(rows[start:], out, strict=False):
            whole = tokenizer.eos_token_id in answer
            found = extract(tokenizer.decode(answer, skip_special_tokens=True), cut_off=not whole)
            parse += found.failure is None
            same += found.failure is None and found.text == extract(row.completion[0].content).text
    return {"rows": len(rows), "parse": parse, "as_taught": same}


def run(chosen: argparse.Namespace) -> None:
    import torch

    from ptxgym.train.sft import sft

    data, out, held_out, device = chosen.data, chosen.out, chosen.held_out, chosen.device
    torch.set_num_threads(1)
    started = time.monotonic()
    rows = shuffled(read_rows(data), SEED, lambda row: row.id)  # as `sft` orders them: those to hold out first
    weights = make_model(rows[held_out:], out / "base", chosen.hidden, chosen.layers)
    recipe = SftRecipe(
        name="tiny", summary="", model=str(out / "base"), data=str(data), held_out=held_out, seed=SEED,
        trainer={
            "use_cpu": device == "cpu", "bf16": False, "disable_tqdm": True, "per_device_train_batch_size": 2,
            "per_device_eval_batch_size": 1, "max_steps": chosen.steps, "learning_rate": chosen.rate,
            "warmup_steps": 10, "lr_scheduler_type": "cosine", "logging_steps": 1, "eval_strategy": "steps",
            "eval_steps": 20, "eval_on_start": True, "save_steps": 100,
        },
    )  # fmt: skip
    before = greedy(out / "base", rows[:held_out], device)
    trained = sft(recipe, out / "run", on_note=print)
    found = {
        "weights": weights, "device": device, "rows": trained.rows, "held_out": held_out, "steps": trained.steps,
        "time_s": time.monotonic() - started, "untrained": before,
        "trained_on": greedy(trained.model, rows[held_out:], device),
        "held_out_rows": greedy(trained.model, rows[:held_out], device),
    }  # fmt: skip
    for name in ("loss", "eval_loss"):
        values = [line.values[name] for line in trained.metrics if name in line.values]
        found |= {f"{name}_first": values[0], f"{name}_last": values[-1]}
    (out / "result.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def plot(out: Path, svg: Path) -> None:
    """Loss by step, of what is trained on and of what is held out."""
    import vl_convert

    names = {"loss": "trained on", "eval_loss": "held out"}
    lines = [Metrics.model_validate_json(line) for line in (out / "run" / METRICS).read_text().splitlines()]
    points = [
        {"step": line.step, "loss": line.values[name], "rows": names[name]}
        for line in lines
        for name in names
        if name in line.values
    ]
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": "white",
        "config": {"font": "Arial, Helvetica, Liberation Sans, sans-serif", "view": {"stroke": None}},
        "width": 420, "height": 260, "data": {"values": points}, "mark": {"type": "line"},
        "encoding": {
            "x": {"field": "step", "type": "quantitative", "title": "step"},
            "y": {"field": "loss", "type": "quantitative", "title": "loss per token of completions",
                  "scale": {"type": "log"}},
            "color": {"field": "rows", "type": "nominal", "title": None, "legend": {"orient": "bottom"},
                      "scale": {"domain": list(names.values()), "range": ["#1f6feb", "#c2410c"]}},
        },
    }  # fmt: skip
    svg.write_text(vl_convert.vegalite_to_svg(spec, vl_version="5.21") + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("data", type=Path)
    running.add_argument("out", type=Path)
    running.add_argument("--steps", type=int, default=200)
    running.add_argument("--held-out", type=int, default=6)
    running.add_argument("--hidden", type=int, default=48)
    running.add_argument("--layers", type=int, default=2)
    running.add_argument("--rate", type=float, default=1e-2)
    running.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    plotting = commands.add_parser("plot")
    plotting.add_argument("out", type=Path)
    plotting.add_argument("--svg", type=Path, required=True)
    chosen = parser.parse_args()
    if chosen.command == "plot":
        plot(chosen.out, chosen.svg)
    else:
        run(chosen)


if __name__ == "__main__":
    main()
