"""What the attention baselines ask of torch and FlashInfer, on arrays that answer like tensors."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ptxgym.errors import NotApplicableError
from ptxgym.task import load_task
from ptxgym.variants import load_variant

AXES = {"B": 2, "H": 3, "S": 8, "D": 64}


class FakeTensor:
    """As much of a torch tensor as the baselines touch; views share memory."""

    device = "cuda"

    def __init__(self, data: Any) -> None:
        self.data = data

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def view(self, *sizes: Any) -> FakeTensor:
        viewed = self.data.view()
        viewed.shape = sizes[0] if isinstance(sizes[0], tuple) else sizes
        return FakeTensor(viewed)

    def is_contiguous(self) -> bool:
        return bool(self.data.flags.c_contiguous)

    def squeeze(self, axis: int) -> FakeTensor:
        return FakeTensor(self.data.squeeze(axis))

    def unsqueeze(self, axis: int) -> FakeTensor:
        return FakeTensor(np.expand_dims(self.data, axis))

    def copy_(self, other: FakeTensor) -> None:
        assert other.shape == self.shape
        self.data[...] = other.data

    def __mul__(self, factor: float) -> FakeTensor:
        return FakeTensor(self.data * factor)


def reference(name: str, inputs: dict[str, FakeTensor]) -> dict[str, Any]:
    module = load_task(name).reference()
    return module.reference(np, {key: tensor.data for key, tensor in inputs.items()}, AXES)


def tensors(name: str) -> dict[str, FakeTensor]:
    task = load_task(name)
    random = np.random.default_rng(2)
    drawn = {tensor.name: random.standard_normal(tensor.sizes(AXES)) for tensor in task.inputs}
    if "bwd" in name:
        drawn.update(task.reference().derived(np, drawn, AXES))
    outputs = {tensor.name: np.full(tensor.sizes(AXES), np.nan) for tensor in task.outputs}
    return {key: FakeTensor(data) for key, data in {**drawn, **outputs}.items()}


def fake_torch(name: str) -> SimpleNamespace:
    """Operators by ATen's schemas (native_functions.yaml), computed by the task's reference."""

    def cudnn_forward(
        query: Any, key: Any, value: Any, bias: None, with_lse: bool, dropout: float, causal: bool
    ) -> tuple[FakeTensor, ...]:
        assert bias is None and dropout == 0.0 and causal == name.endswith("causal")
        found = reference(name, {"Q": query, "K": key, "V": value})
        return FakeTensor(found["O"]), FakeTensor(found["LSE"][..., None] if with_lse else np.zeros(0))

    def cudnn_backward(*arguments: Any) -> tuple[FakeTensor, ...]:
        assert len(arguments) == 15
        gradient, query, key, value, output, lse, seed, offset, *rest = arguments
        assert lse.shape == (2, 3, 8, 1) and seed.shape == offset.shape == ()
        assert rest == [None, None, None, 8, 8, 0.0, name.endswith("causal")]
        inputs = {"Q": query, "K": key, "V": value, "O": output, "dO": gradient, "LSE": lse.squeeze(-1)}
        return tuple(FakeTensor(array) for array in reference(name, inputs).values())

    aten = SimpleNamespace(
        _scaled_dot_product_cudnn_attention=cudnn_forward,
        _scaled_dot_product_cudnn_attention_backward=cudnn_backward,
    )

    def array(function: Any) -> Any:
        return lambda shape, dtype, device: FakeTensor(function(shape, dtype))

    return SimpleNamespace(
        ops=SimpleNamespace(aten=aten),
        int64=np.int64,
        int32=np.int32,
        uint8=np.uint8,
        float32=np.float32,
        bfloat16="bf16",
        zeros=array(np.zeros),
        empty=array(np.empty),
        arange=lambda stop, dtype, device: FakeTensor(np.arange(stop, dtype=dtype)),
    )


class FakeFlashInfer:
    """Ragged prefill of sequences with one head each; LSE in base 2, as its documentation says."""

    def __init__(self, workspace: FakeTensor, layout: str) -> None:
        assert layout == "NHD" and workspace.data.nbytes == 128 << 20

    def plan(
        self, queries: Any, keys: Any, query_heads: int, key_heads: int, width: int, *, causal: bool, q_data_type: str
    ) -> None:
        assert list(queries.data) == list(keys.data) == [8 * sequence for sequence in range(7)]
        assert (query_heads, key_heads, width, q_data_type) == (1, 1, 64, "bf16")
        self.name = "attn_fwd_causal" if causal else "attn_fwd"

    def run(self, query: Any, key: Any, value: Any, *, out: Any, lse: Any, return_lse: bool) -> None:
        assert return_lse
        whole = (2, 3, 8, 64)
        found = reference(self.name, {"Q": query.view(whole), "K": key.view(whole), "V": value.view(whole)})
        out.data[...] = found["O"].reshape(48, 1, 64)
        lse.data[...] = (found["LSE"] / np.log(2)).reshape(48, 1)


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("attn_fwd", "cuDNN"),
        ("attn_fwd_causal", "cuDNN"),
        ("attn_fwd", "FlashInfer"),
        ("attn_fwd_causal", "FlashInfer"),
        ("attn_bwd", "cuDNN"),
        ("attn_bwd_causal", "cuDNN"),
    ],
)
def test_results_reach_the_outputs(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(name))
    flashinfer = SimpleNamespace(BatchPrefillWithRaggedKVCacheWrapper=FakeFlashInfer)
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer)
    given = tensors(name)
    baselines = load_task(name).baselines().BASELINES
    call, hand_over = baselines[library](given, AXES)
    for _ in range(2):
        call()
    hand_over()
    wanted = reference(name, {tensor.name: given[tensor.name] for tensor in load_task(name).inputs})
    for output, values in wanted.items():
        assert given[output].data == pytest.approx(values, rel=1e-6), output


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("attn_fwd", "bshd"),
        ("attn_fwd", "o"),
        ("attn_fwd_causal", "d96-bshd-lse"),
        ("attn_bwd", "bshd"),
        ("attn_bwd", "dv"),
        ("attn_bwd_causal", "d64-bshd-dkdv"),
        ("attn_bwd", "dq"),
    ],
)
def test_variants_get_their_own_outputs(name: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their own layout, and without the inputs that they do without."""
    task, given = load_variant(name, variant), tensors(name)
    wanted = reference(name, {tensor.name: given[tensor.name] for tensor in load_task(name).inputs})
    stored = {
        tensor.name: np.ascontiguousarray(given[tensor.name].data.transpose(tensor.to_stored))
        for tensor in (*task.inputs, *task.outputs)
    }
    seen = {
        tensor.name: FakeTensor(stored[tensor.name].transpose(tensor.to_logical))
        for tensor in (*task.inputs, *task.outputs)
    }
    monkeypatch.setitem(sys.modules, "torch", fake_torch(name))
    call, hand_over = task.baselines().BASELINES["cuDNN"](seen, AXES)
    call()
    hand_over()
    for tensor in task.outputs:
        expected = wanted[tensor.name].transpose(tensor.to_stored)
        assert stored[tensor.name] == pytest.approx(expected, rel=1e-6), tensor.name
    if "fwd" in name:
        monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace())
        with pytest.raises(NotApplicableError, match="prepared for O with LSE"):
            task.baselines().BASELINES["FlashInfer"](seen, AXES)


def test_every_attention_task_is_raced_against_cudnn() -> None:
    for name, libraries in (("attn_fwd", {"cuDNN", "FlashInfer"}), ("attn_bwd", {"cuDNN"})):
        for task in (name, f"{name}_causal"):
            assert set(load_task(task).baselines().BASELINES) == libraries
