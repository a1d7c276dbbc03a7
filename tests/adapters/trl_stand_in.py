"""What of TRL 1.16 and torch the adapter uses, in numpy: for what of it can be tested where they are not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.adapters.letters import END_OF_TEXT, Letters

CHECKPOINTING = {"use_reentrant": False}
"""The trainer's settings of gradient checkpointing."""


def adapter(monkeypatch: pytest.MonkeyPatch, name: str = "ptxgym.adapters.trl") -> ModuleType:
    """Import the adapter, or what builds on it, over the stand-ins; what is installed is back after the test."""
    parts: dict[str, dict[str, Any]] = {
        "torch": {"no_grad": nullcontext},
        "trl": {},
        "trl.models": {"unwrap_model_for_generation": unwrap_model_for_generation},
        "accelerate": {"PartialState": lambda: SimpleNamespace(process_index=0)},
        "accelerate.utils": {"gather_object": list},
    }
    for part, attributes in parts.items():
        module = ModuleType(part)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, part, module)
    for ours in {"ptxgym.adapters.trl", name}:
        monkeypatch.setitem(sys.modules, ours, ModuleType(ours))  # and so it is put back, or forgotten
        del sys.modules[ours]
    return import_module(name)


@contextmanager
def unwrap_model_for_generation(
    model: Wrapped,
    accelerator: Any,
    gather_deepspeed3_params: bool = True,
    generation_kwargs: Any = None,
    gradient_checkpointing_kwargs: Any = None,
) -> Iterator[Model]:
    """Lend the model with gradient checkpointing off, as TRL does."""
    inner = accelerator.unwrap_model(model)
    before, inner.checkpointing = inner.checkpointing, None
    yield inner
    inner.checkpointing = None if before is None else gradient_checkpointing_kwargs


class Tensor(np.ndarray[Any, Any]):
    """An array that is moved to a device by staying where it is."""

    def to(self, device: str) -> Tensor:
        """Return it."""
        return self


class PaddingLetters(Letters):
    """Pads as transformers does: by the token that ends a text, on the left."""

    pad_token_id = ord(END_OF_TEXT)

    def pad(
        self, encoded: Mapping[str, Sequence[Sequence[int]]], padding_side: str, return_tensors: str
    ) -> dict[str, Any]:
        """Return `input_ids` and `attention_mask` of equal length."""
        assert (padding_side, return_tensors) == ("left", "pt")
        rows = encoded["input_ids"]
        longest = max(map(len, rows))
        ids = [[self.pad_token_id] * (longest - len(row)) + list(row) for row in rows]
        mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
        return {"input_ids": np.array(ids).view(Tensor), "attention_mask": np.array(mask).view(Tensor)}


class Model:
    """Writes given answers, the shorter ones padded on the right as `generate` of transformers does."""

    device = "cpu"

    def __init__(self, answers: Sequence[str]) -> None:
        """Make one that says `answers[row]` in each row."""
        self._answers = answers
        self.asked: dict[str, Any] = {}
        self.checkpointing: Any = {"use_reentrant": True}
        """Settings of gradient checkpointing, which GRPOConfig turns on; None where it is off."""

    def generate(self, *, input_ids: Tensor, attention_mask: Tensor, **settings: Any) -> Any:
        """Return prompts with answers behind them; with gradient checkpointing, up to transformers 5.22, nothing good.

        `GradientCheckpointingLayer` drops the cache of a model in training mode there, and each token but the first
        is sampled from the one before it alone.
        """
        assert self.checkpointing is None, "each token is sampled without what stands before it"
        self.asked = settings
        longest = max(map(len, self._answers))
        said = np.array([[ord(letter) for letter in text.ljust(longest, END_OF_TEXT)] for text in self._answers])
        return np.concatenate([input_ids, said], axis=1)


class Wrapped:
    """A model in what trains it on several devices."""

    def __init__(self, model: Any) -> None:
        """Wrap `model`."""
        self.model = model


def trainer(model: Any, ends: Sequence[str], room: int = 10_000) -> Any:
    """What of a GRPOTrainer the adapter reads; `ends` are its end tokens, the tokenizer's among them."""
    return SimpleNamespace(
        model=model,
        model_wrapped=Wrapped(model),
        accelerator=SimpleNamespace(unwrap_model=lambda each: getattr(each, "model", each)),
        args=SimpleNamespace(gradient_checkpointing_kwargs=CHECKPOINTING, ds3_gather_for_generation=True),
        processing_class=PaddingLetters(),
        generation_config=object(),
        eos_token_ids=[ord(end) for end in ends],
        max_completion_length=room,
    )
