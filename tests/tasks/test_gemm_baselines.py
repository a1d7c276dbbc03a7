"""What the GEMM baselines of variants ask of torch, on arrays that answer like tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ptxgym.errors import NotApplicableError
from ptxgym.task import load_task
from ptxgym.variants import load_variant

AXES = {"M": 6, "N": 5, "K": 16}


class FakeTensor:
    """As much of a torch tensor as the baselines touch; in-place operations change the shared memory."""

    device = "cuda"

    def __init__(self, data: Any) -> None:
        self.data = data

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> Any:
        return self.data.dtype.type

    @property
    def T(self) -> FakeTensor:  # noqa: N802
        return FakeTensor(self.data.T)

    def is_contiguous(self) -> bool:
        return bool(self.data.flags.c_contiguous)

    def mul_(self, other: FakeTensor) -> None:
        self.data *= other.data

    def div_(self, divisor: float) -> None:
        self.data /= divisor

    def add_(self, other: FakeTensor) -> None:
        self.data += other.data

    def copy_(self, other: FakeTensor) -> None:
        assert other.shape == self.shape
        self.data[...] = other.data


def gelu(x: FakeTensor, approximate: str) -> FakeTensor:
    assert approximate == "tanh"
    values = x.data.astype(np.float64)
    return FakeTensor(values / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (values + 0.044715 * values**3))))


def fake_torch() -> SimpleNamespace:
    """float16 stands for BF16."""

    def matmul(a: FakeTensor, b: FakeTensor, *, out: FakeTensor) -> None:
        assert out.dtype == np.float16
        out.data[...] = a.data @ b.data

    def mm(a: FakeTensor, b: FakeTensor, out_dtype: Any, *, out: FakeTensor) -> None:
        assert out_dtype is np.float32 and out.dtype == np.float32
        out.data[...] = a.data @ b.data

    flags = SimpleNamespace(allow_bf16_reduced_precision_reduction=True)
    return SimpleNamespace(
        float32=np.float32,
        bfloat16=np.float16,
        matmul=matmul,
        mm=mm,
        empty=lambda shape, dtype, device: FakeTensor(np.empty(shape, dtype)),
        relu=lambda x: FakeTensor(np.maximum(x.data, 0)),
        nn=SimpleNamespace(functional=SimpleNamespace(gelu=gelu)),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=flags)),
    )


@pytest.mark.parametrize(
    "variant",
    ["base", "nn", "nt", "tt-fp32", "fp32", "scale", "nn-bias", "scale-bias-relu", "div32-bias-gelu", "bias-residual"],
)
def test_cublas_and_steps_of_torch_give_what_the_variant_asks_for(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_variant("gemm", variant)
    random = np.random.default_rng(1)
    stored = {tensor.name: random.integers(-3, 4, tensor.sizes(AXES)).astype(np.float32) for tensor in task.inputs}
    stored["C"] = np.zeros((6, 5), np.float32 if task.outputs[0].dtype == "fp32" else np.float16)
    tensors = {
        tensor.name: FakeTensor(stored[tensor.name].transpose(tensor.to_logical))
        for tensor in (*task.inputs, *task.outputs)
    }
    torch = fake_torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    libraries = task.baselines().BASELINES
    assert set(libraries) == {"cuBLAS", "cuBLASLt"}
    call = libraries["cuBLAS"](tensors, AXES)
    given = {name: tensor.data for name, tensor in tensors.items() if name != "C"}
    wanted = task.reference().reference(np, given, AXES)["C"]
    for _ in range(2):
        call()
        assert stored["C"] == pytest.approx(wanted, rel=1e-3, abs=1e-3)
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is True
    if variant != "base":
        with pytest.raises(NotApplicableError, match="without another layout, type or epilogue"):
            libraries["cuBLASLt"](tensors, AXES)


class Timeline:
    """A stream that goes on at once, or waits behind a gate until all is enqueued; and a host that is slow at times."""

    cost_us = (90.0, 70.0, 80.0)

    def __init__(self) -> None:
        self.now_us, self.closed, self.runs = 0.0, False, list[tuple[int, bool]]()

    def run(self, proposal: int) -> None:
        self.runs.append((proposal, self.closed))
        self.now_us += self.cost_us[proposal] + (50.0 if proposal == 1 and not self.closed else 0.0)

    @contextmanager
    def gate(self, stream: int) -> Iterator[None]:
        assert stream == 42
        self.closed = True
        yield
        self.closed = False

    def torch(self) -> SimpleNamespace:
        line = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_us = line.now_us

            def synchronize(self) -> None:
                assert not line.closed, "it would wait for what waits for it"

            def elapsed_time(self, end: Event) -> float:
                return (end.at_us - self.at_us) / 1e3

        stream = SimpleNamespace(cuda_stream=42)
        return SimpleNamespace(
            uint8=np.uint8,
            empty=lambda size, dtype, device: SimpleNamespace(zero_=lambda: None),
            cuda=SimpleNamespace(Event=Event, current_stream=lambda: stream, synchronize=lambda: None),
        )


def test_the_fastest_proposal_is_chosen_behind_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Timeline()
    monkeypatch.setattr("ptxgym.device.cuda.gate.Gate", lambda: SimpleNamespace(closed=line.gate))
    library: Any = load_task("gemm").baselines()
    assert set(library.CHOOSES) <= set(library.BASELINES)
    product = object.__new__(library._LtProduct)
    product.torch, product.run, product.proposals = line.torch(), line.run, range
    assert product.fastest(3) == 1
    assert line.runs[:3] == [(0, False), (1, False), (2, False)], "what loads code may wait for the GPU"
    assert len(line.runs) > 3 and all(closed for _, closed in line.runs[3:])


def test_other_tasks_do_not_share_settings() -> None:
    assert load_task("gemm").baselines().BASELINES is not load_variant("gemm", "fp32").baselines().BASELINES
