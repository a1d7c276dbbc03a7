"""`Source`: the space of kernel texts, feedback and prompts.

Gymnasium's `Text` lists its characters one by one and, read through the shared memory of `AsyncVectorEnv`, is decoded
once at construction and never again. `Source` is bounded in UTF-8 bytes instead, and hands `AsyncVectorEnv` a live view
of the shared memory, so that its default settings deliver the texts that the environments wrote.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from ctypes import c_uint8
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector.utils.shared_memory import (
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)
from numpy.typing import NDArray

_HEADER_BYTES = 4
"""A text's length in shared memory, little-endian, before its bytes."""

SAMPLES = 4
"""Different texts that `sample` returns: few, so that checkers which step on samples meet the verdict cache."""

_SAMPLE = """// sample {tag}
#include <cuda_runtime.h>

extern "C" __global__ void nothing_{tag}() {{}}
"""


class Source(Space[str]):
    """All texts of at most `max_bytes` bytes of UTF-8, the empty text included."""

    def __init__(self, max_bytes: int, seed: int | np.random.Generator | None = None) -> None:
        """Create the space.

        Args:
            max_bytes: Longest text, in bytes of its UTF-8 form; at least 1.
            seed: Seed or generator for `sample`.

        Raises:
            ValueError: If `max_bytes` is below 1.
        """
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        super().__init__(shape=None, dtype=None, seed=seed)
        self.max_bytes = max_bytes

    @property
    def is_np_flattenable(self) -> bool:
        """Texts have no fixed-size array form."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Return one of a few small valid CUDA files that define an empty kernel, cut to the bound.

        Args:
            mask: Not supported.
            probability: Not supported.

        Raises:
            ValueError: If a mask or a probability is given.
        """
        if mask is not None or probability is not None:
            raise ValueError("Source.sample takes neither mask nor probability")
        return _SAMPLE.format(tag=int(self.np_random.integers(SAMPLES)))[: self.max_bytes]

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a `str` that fits the bound and has a UTF-8 form (no lone surrogates)."""
        if not isinstance(x, str) or len(x) > self.max_bytes:
            return False
        try:
            return len(x.encode()) <= self.max_bytes
        except UnicodeEncodeError:
            return False

    def fit(self, text: str) -> str:
        """Return the longest start of `text` that the space contains, lone surrogates replaced by `?`."""
        if self.contains(text):
            return text
        return text[: self.max_bytes].encode(errors="replace")[: self.max_bytes].decode(errors="ignore")

    def __repr__(self) -> str:
        """Return the constructor call."""
        return f"Source({self.max_bytes})"

    def __eq__(self, other: object) -> bool:
        """Spaces are equal when their bounds are."""
        return isinstance(other, Source) and other.max_bytes == self.max_bytes

    def __hash__(self) -> int:
        """Hash by the bound, as equality compares."""
        return hash((Source, self.max_bytes))

    def __getstate__(self) -> dict[str, Any]:
        """Leave a random generator that was never used out of the pickle."""
        return {name: value for name, value in self.__dict__.items() if value is not None}

    def __setstate__(self, state: Any) -> None:
        """Restore what `__getstate__` left out."""
        self.__dict__.update({"_shape": None, "dtype": None, "_np_random": None})
        super().__setstate__(state)


class SharedTexts(Sequence[str]):
    """The texts of all environments of an `AsyncVectorEnv`, read from shared memory each time they are looked at.

    `AsyncVectorEnv` asks for its observations once and copies them after every step; the copy is a tuple of `str`.
    """

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        """Wrap `memory`: uint8 [num_envs, 4 + max_bytes]."""
        self._memory = memory

    def __len__(self) -> int:
        """Return the number of environments."""
        return len(self._memory)

    def __getitem__(self, index: Any) -> Any:
        """Return the present text of one environment, or of a slice of them."""
        if isinstance(index, slice):
            return tuple(self)[index]
        row = self._memory[index]
        size_bytes = int.from_bytes(row[:_HEADER_BYTES].tobytes(), "little")
        return row[_HEADER_BYTES : _HEADER_BYTES + size_bytes].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the present texts."""
        return (self[index] for index in range(len(self)))

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        """Return the present texts."""
        return tuple(self)

    def __eq__(self, other: object) -> bool:
        """Compare the present texts with any sequence of texts."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # its texts change

    def __repr__(self) -> str:
        """Return the present texts, as a tuple would."""
        return repr(tuple(self))


def _rows(space: Source, memory: Any) -> NDArray[np.uint8]:
    """View a shared array as uint8 [num_envs, 4 + max_bytes]."""
    flat: NDArray[np.uint8] = np.frombuffer(memory.get_obj(), dtype=np.uint8)
    return flat.reshape(-1, _HEADER_BYTES + space.max_bytes)


@create_shared_memory.register(Source)
def _create(space: Source, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.Array(c_uint8, n * (_HEADER_BYTES + space.max_bytes))


@read_from_shared_memory.register(Source)
def _read(space: Source, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(_rows(space, shared_memory))


@write_to_shared_memory.register(Source)
def _write(space: Source, index: int, value: str, shared_memory: Any) -> None:
    encoded = value.encode()
    if len(encoded) > space.max_bytes:
        raise ValueError(f"text of {len(encoded)} bytes does not fit {space!r}")
    row = _rows(space, shared_memory)[index]
    row[:_HEADER_BYTES] = np.frombuffer(len(encoded).to_bytes(_HEADER_BYTES, "little"), dtype=np.uint8)
    row[_HEADER_BYTES : _HEADER_BYTES + len(encoded)] = np.frombuffer(encoded, dtype=np.uint8)
