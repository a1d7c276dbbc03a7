"""Under which conditions a submission is judged: seeds and one hidden shape, drawn from a secret.

All evaluations of an epoch share their conditions, so that members of a group are comparable, references are computed
once, and equal texts get equal verdicts. Who does not hold the run secret can predict neither inputs nor hidden shape.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import math
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxgym.device.protocol import Bytes
from ptxgym.judge import numbers
from ptxgym.task import ITEM_BYTES, Axes, Draw, Task, Tensor

SECRET_VARIABLE = "PTXGYM_SECRET"
SPIKE_RATE = 0.001
SPIKE_STD = 10.0
INTEGER_LIMIT = 8
"""Integers of the exact draw: products up to 64, so sums of 2¹⁸ of them are exact in FP32."""
CHUNK = 1 << 18
"""Elements that one stream draws: 1 MiB as float32, which stays in a core's cache until it is encoded."""
LEAST_CHUNKS_PER_THREAD = 2
"""Below that, threads cost more than they gain."""


@dataclass(frozen=True)
class Case:
    """One call that a submission is judged on."""

    name: str
    """Such as `emulation/normal` or `hidden/spiky`; the part before the slash says where the shape comes from."""
    axes: Axes
    draw: Draw
    seed: int
    """128 bits."""
    hidden: bool

    def __hash__(self) -> int:
        return hash((self.name, self.seed, *self.axes.items()))


@dataclass(frozen=True)
class Conditions:
    """All calls that make up one verdict."""

    workload: str
    epoch: int
    cases: tuple[Case, ...]
    hash: str
    """16 hex digits that name secret, task, workload and epoch without revealing the secret."""


def run_secret() -> bytes:
    """Return the secret of this run: `PTXGYM_SECRET`, or one drawn now and exported to processes started from here.

    Nothing that runs a submission may inherit the variable: who knows it can compute the inputs.
    """
    with _DRAWING:
        text = os.environ.get(SECRET_VARIABLE)
        if not text:
            text = secrets.token_hex(32)
            os.environ[SECRET_VARIABLE] = text
    return text.encode()


_DRAWING = threading.Lock()
os.register_at_fork(before=_DRAWING.acquire, after_in_parent=_DRAWING.release, after_in_child=_DRAWING.release)


def secret_hash(secret: bytes | None = None) -> str:
    """Return the hash that may be logged: SHA-256 of a fixed prefix and the secret, 16 hex digits."""
    return hashlib.sha256(b"ptxgym run secret:" + (run_secret() if secret is None else secret)).hexdigest()[:16]


def conditions(task: Task, workload: str = "emulation", epoch: int = 0, secret: bytes | None = None) -> Conditions:
    """Derive the conditions of `workload`: its own draws and the hidden ones, one of which is on a hidden shape.

    Which one the secret says, so that no kind of inputs can be left to other shapes than the workload's own. What would
    show nothing at the hidden shape (`Workload.least`) is made on the workload's own; where those are all hidden draws,
    the last open one is made on the hidden shape.

    Args:
        task: the task; its revision is part of the derivation.
        workload: a name of the task's workloads.
        epoch: evaluations of one epoch share their conditions.
        secret: the run secret; None means `run_secret()`.

    Raises:
        UnknownNameError: if the task has no such workload.
    """
    key = run_secret() if secret is None else secret
    spec = task.workload(workload)

    def derive(label: str) -> int:
        message = "\x1f".join((task.label, str(task.revision), workload, str(epoch), label))
        return int.from_bytes(hmac.new(key, message.encode(), hashlib.sha256).digest()[:16], "little")

    open_draws = [(draw, f"draw {draw}") for draw in spec.draws]
    hidden_draws = [(draw, f"hidden draw {draw}") for draw in spec.hidden_draws]
    hidden = []
    if spec.hidden:
        axes = spec.hidden[derive("hidden shape") % len(spec.hidden)]
        unseen = {draw for draw in spec.hidden_draws if spec.shows(draw, spec.axes) and not spec.shows(draw, axes)}
        able = [each for each in hidden_draws if each[0] not in unseen] or open_draws[-1:]
        draw, label = able[derive("draw on the hidden shape") % len(able)]
        hidden = [Case(f"hidden/{draw}", axes, draw, derive(label), hidden=True)]
    seeds = {case.seed for case in hidden}
    public = [
        Case(f"{workload}/{draw}", spec.axes, draw, derive(label), hidden=False)
        for draw, label in (*open_draws, *hidden_draws)
    ]
    cases = [*(case for case in public if case.seed not in seeds), *hidden]
    name = f"{derive('name of these conditions'):032x}"[:16]
    return Conditions(workload, epoch, tuple(cases), name)


def inputs(task: Task, case: Case, xp: Any = np) -> dict[str, Bytes]:
    """Return the inputs of `case` as device bytes, by name: drawn on the host, derived on the device of `xp`.

    What is drawn is the same, bit for bit, wherever it will be used. What is derived is computed in float64, rounded
    to FP32 and from there to the input's type; devices sum in other orders, which moves the last place of some 10⁻⁸ of
    the FP32 values and of none, in practice, of those in BF16.
    """
    given = {name: xp.asarray(data) for name, data in _drawn(task, case).items()}
    derived = {tensor.name: tensor for tensor in task.inputs if tensor.derived}
    if derived:
        drawn = [tensor for tensor in (*task.inputs, *task.unused) if not tensor.derived]
        found = task.reference().derived(xp, numbers.values(drawn, given, case.axes), case.axes)
        given.update({name: numbers.store(found[name].astype(np.float32), one) for name, one in derived.items()})
    return {tensor.name: given[tensor.name] for tensor in task.inputs}


def _drawn(task: Task, case: Case) -> dict[str, Bytes]:
    """Draw inputs in chunks of `CHUNK` elements, each from a stream of its own, on all cores that the process may use.

    The number of threads changes nothing.
    """
    drawn: dict[str, Bytes] = {}
    chunks: list[Callable[[], None]] = []
    for tensor, stream in zip(task.inputs, np.random.SeedSequence(case.seed).spawn(len(task.inputs)), strict=True):
        if tensor.derived:
            continue
        drawn[tensor.name] = np.empty(tensor.size_bytes(case.axes), np.uint8)
        chunks += _chunks(case, tensor, drawn[tensor.name], stream)
    threads = min(len(os.sched_getaffinity(0)), len(chunks) // LEAST_CHUNKS_PER_THREAD)
    if threads < 2:
        for chunk in chunks:
            chunk()
        return drawn
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(chunk) for chunk in chunks]:
            done.result()
    return drawn


def _chunks(case: Case, tensor: Tensor, data: Bytes, stream: np.random.SeedSequence) -> Iterator[Callable[[], None]]:
    """Return what fills `data`, chunk by chunk."""
    item_bytes = ITEM_BYTES[tensor.dtype]
    count = len(data) // item_bytes
    starts = range(0, count, CHUNK)
    whole, *streams = stream.spawn(1 + len(starts))
    values = _DRAWS[case.draw](np.random.default_rng(whole), tensor)
    means = _means(np.random.default_rng(whole), tensor, case.axes) if case.draw == "cancelling" else None

    def fill(start: int, own: np.random.SeedSequence) -> None:
        stop = min(start + CHUNK, count)
        drawn = values(np.random.default_rng(own), stop - start)
        if means is not None:
            drawn += means(start, stop)
        data[start * item_bytes : stop * item_bytes] = numbers.encode(drawn, tensor.dtype)

    for start, own in zip(starts, streams, strict=True):
        yield functools.partial(fill, start, own)


def buffers(task: Task, case: Case) -> dict[str, Bytes]:
    """Return what a device gets: the drawn inputs, and every output filled with a NaN that marks it as unwritten."""
    outputs = {tensor.name: numbers.poisoned(tensor, case.axes) for tensor in task.outputs}
    return {**inputs(task, case), **outputs}


_Chunk = Callable[[np.random.Generator, int], numbers.Floats]
"""Draws that many values from a chunk's own stream."""


def _normal(random: np.random.Generator, tensor: Tensor) -> _Chunk:
    return _standard


def _standard(random: np.random.Generator, count: int) -> numbers.Floats:
    return random.standard_normal(count, dtype=np.float32)


def _shifted(random: np.random.Generator, tensor: Tensor) -> _Chunk:
    """Shift by ±0.5 … 1.5 standard deviations, so that zeros and identities are far off; scale as the task says."""
    shift = np.float32(random.uniform(0.5, 1.5) * random.choice((-1.0, 1.0)))
    low, high = tensor.shifted_scale_log2
    scale = np.float32(2.0 ** int(random.integers(low, high, endpoint=True)))

    def chunk(own: np.random.Generator, count: int) -> numbers.Floats:
        values = _standard(own, count)
        values += shift
        values *= scale
        return values

    return chunk


def _spiky(random: np.random.Generator, tensor: Tensor) -> _Chunk:
    def chunk(own: np.random.Generator, count: int) -> numbers.Floats:
        values = _standard(own, count)
        spikes = np.flatnonzero(own.random(count, dtype=np.float32) < SPIKE_RATE)
        values[spikes] += SPIKE_STD * _standard(own, len(spikes))
        return values

    return chunk


def _sharp(random: np.random.Generator, tensor: Tensor) -> _Chunk:
    """Scale as the task says, so that what is exponentiated later spreads widely."""
    return _scaled(tensor.sharp_scale_log2)


def _cancelling(random: np.random.Generator, tensor: Tensor) -> _Chunk:
    """Scale as the task says; `_means` are added, which know where an element lies."""
    return _scaled(tensor.cancelling.scale_log2)


def _scaled(log2: int) -> _Chunk:
    scale = np.float32(2.0**log2)

    def chunk(own: np.random.Generator, count: int) -> numbers.Floats:
        values = _standard(own, count)
        values *= scale
        return values

    return chunk


def _means(random: np.random.Generator, tensor: Tensor, axes: Axes) -> Callable[[int, int], numbers.Floats]:
    """Return the means of elements as they lie in memory: sums over half an axis grow, and the other half cancels them.

    Who keeps such sums in fewer bits than FP32 between steps loses what is left at the end.
    """
    own, mean = tensor.cancelling, np.float32(tensor.cancelling.mean * random.choice((-1.0, 1.0)))
    size = axes[own.along] if own.along is not None else 1
    inner = math.prod(axes[axis] for axis in tensor.shape[tensor.shape.index(own.along) + 1 :]) if own.along else 1

    def means(start: int, stop: int) -> numbers.Floats:
        second = 2 * (np.arange(start, stop) // inner % size) >= size if own.along else np.zeros(stop - start, np.bool_)
        return np.where(second, -mean, mean)

    return means


def _integers(random: np.random.Generator, tensor: Tensor) -> _Chunk:
    def chunk(own: np.random.Generator, count: int) -> numbers.Floats:
        return own.integers(-INTEGER_LIMIT, INTEGER_LIMIT, count, dtype=np.int8, endpoint=True).astype(np.float32)

    return chunk


_DRAWS: dict[Draw, Callable[[np.random.Generator, Tensor], _Chunk]] = {
    "normal": _normal,
    "shifted": _shifted,
    "spiky": _spiky,
    "sharp": _sharp,
    "cancelling": _cancelling,
    "integers": _integers,
}
"""By draw: what the tensor as a whole draws from the first stream, and how a chunk follows from that."""
