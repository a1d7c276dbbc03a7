"""What a comparison needs of an output, in one pass over it: sums per 64×64 tile, by numpy or by one CUDA kernel.

The kernel reads the output, its reference and the ideal result once (12 bytes an element in BF16, 0.7 GB at
8192×7168) and writes 24 bytes a tile; nothing as large as the output is made. Sums are added in a fixed order, so that
equal outputs get equal numbers. `_by_numpy` is the same formula written apart; tests hold the kernel against it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgym.judge import numbers

TILE = 64
PTXBENCH_ATOL = PTXBENCH_RTOL = 1e-2

Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TileSums:
    """Sums over an output's tiles and counts over all of it, on the host."""

    squares: Doubles
    """Per tile: sum of squared errors of the finite elements."""
    not_finite: NDArray[np.int64]
    """Per tile: NaN and infinite elements."""
    unwritten: int
    """Elements that still hold the poison."""
    inexact: int
    """Elements that differ from a reference which the output's type can hold."""
    far: int
    """Elements that PTXBench's tolerance refuses; 0 where no ideal result was given."""


def tile_grid(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many tiles an output of these sizes has: 64×64 of the last two axes (the last alone for vectors)."""
    inner = min(2, len(sizes))
    return (*sizes[: len(sizes) - inner], *(-(-size // TILE) for size in sizes[len(sizes) - inner :]))


def tile_sums(values: Any) -> Any:
    """Return the sum over every tile, in the shape of `tile_grid`, on the device of `values`."""
    xp = numbers.namespace(values)
    sizes = values.shape
    rows, columns = _rows_and_columns(sizes)
    padding = ((0, 0), (0, -rows % min(TILE, rows)), (0, -columns % TILE))
    grid = values.reshape(-1, rows, columns)
    if padding[1][1] or padding[2][1]:
        grid = xp.pad(grid, padding)
    height = min(TILE, rows)
    split = grid.reshape(len(grid), grid.shape[1] // height, height, grid.shape[2] // TILE, TILE)
    return split.sum(axis=(2, 4)).reshape(tile_grid(sizes))


def measure(found: Any, reference: Any, ideal: Any | None) -> TileSums:
    """Return the sums of one output.

    Args:
        found: the output's words (uint16 for BF16, uint32 for FP32), in its shape.
        reference: float64, the same shape, on the same device.
        ideal: words of the ideal result, for PTXBench's tolerance; None leaves that out.
    """
    return _by_numpy(found, reference, ideal) if isinstance(found, np.ndarray) else _by_kernel(found, reference, ideal)


def ptxbench_far(found: Any, vendor: Any) -> Any:
    """Return where PTXBench refuses finite values: off by more than 1e-2 both absolutely and relatively.

    Source: PTXBench at commit 491860b, `packages/fibserve/flashinfer_bench/bench/utils.py`; `vendor` is the result of a
    library that accumulates in FP32 and rounds once.
    """
    xp = numbers.namespace(found)
    off = xp.abs(found - vendor)
    return (off > PTXBENCH_ATOL) & (off / (xp.abs(vendor) + 1e-8) > PTXBENCH_RTOL)


def holds_exactly(reference: Any, word_bytes: int) -> Any:
    """Return which float64 values the output's type (2 bytes: BF16, 4: FP32) holds exactly."""
    xp = numbers.namespace(reference)
    single = reference.astype(xp.float32)
    return (numbers.round_bf16(single) if word_bytes == 2 else single).astype(xp.float64) == reference


def _rows_and_columns(sizes: tuple[int, ...]) -> tuple[int, int]:
    return (1, sizes[0]) if len(sizes) == 1 else (sizes[-2], sizes[-1])


def _float64(words: Any) -> Any:
    values = numbers.bf16_values(words) if words.dtype.itemsize == 2 else words.view(np.float32)
    return values.astype(np.float64)


def _by_numpy(found: NDArray[Any], reference: Doubles, ideal: NDArray[Any] | None) -> TileSums:
    values = _float64(found)
    finite = np.isfinite(values)
    error = np.where(finite, values, 0.0) - np.where(finite, reference, 0.0)
    far = ptxbench_far(values[finite], _float64(ideal)[finite]) if ideal is not None else np.zeros(0, np.bool_)
    poison = numbers.POISON["bf16" if found.dtype.itemsize == 2 else "fp32"]
    return TileSums(
        squares=tile_sums(np.square(error)),
        not_finite=tile_sums((~finite).astype(np.int64)),
        unwritten=int(np.count_nonzero(found == poison)),
        inexact=int(np.count_nonzero(holds_exactly(reference, found.dtype.itemsize) & ((error != 0.0) | ~finite))),
        far=int(np.count_nonzero(far)),
    )


_SOURCE = r"""
template <typename Word> __device__ double value(Word word);
template <> __device__ double value(unsigned short word) { return __uint_as_float(unsigned(word) << 16); }
template <> __device__ double value(unsigned int word) { return __uint_as_float(word); }

// Rounding to nearest even, for what is exact in the type; NaN does not occur in references.
__device__ bool holds_exactly(double reference, unsigned short) {
  const unsigned bits = __float_as_uint(float(reference));
  const unsigned rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
  return double(__uint_as_float(rounded)) == reference;
}
__device__ bool holds_exactly(double reference, unsigned int) { return double(float(reference)) == reference; }

template <typename Sum> __device__ Sum warp_sum(Sum sum) {
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
  return sum;
}

// One block of 256 threads a tile; squares[tile], counts[tile][4]: not finite, unwritten, inexact, far.
template <typename Word>
__global__ void __launch_bounds__(256)
    measure(const Word* found, const double* reference, const Word* ideal, Word poison, long long rows,
            long long columns, double* squares, int4* counts) {
  const long long across = (columns + 63) / 64, down = (rows + 63) / 64, tile = blockIdx.x;
  const long long plane = tile / (across * down);
  const long long row0 = tile / across % down * 64, column = tile % across * 64 + threadIdx.x % 64;
  double sum = 0.0;
  int4 seen = {0, 0, 0, 0};
  for (int step = threadIdx.x / 64; step < 64; step += 4) {
    const long long row = row0 + step;
    if (row >= rows || column >= columns) break;
    const long long index = (plane * rows + row) * columns + column;
    const Word word = found[index];
    const double result = value(word), wanted = reference[index], error = result - wanted;
    const bool finite = isfinite(result);
    if (finite) sum += error * error;
    seen.x += !finite;
    seen.y += word == poison;
    seen.z += !(error == 0.0) && holds_exactly(wanted, word);
    if (ideal != nullptr && finite) {
      const double vendor = value(ideal[index]), off = fabs(result - vendor);
      seen.w += off > LIMIT_ABSOLUTE && off / (fabs(vendor) + 1e-8) > LIMIT_RELATIVE;
    }
  }
  sum = warp_sum(sum);
  seen = {warp_sum(seen.x), warp_sum(seen.y), warp_sum(seen.z), warp_sum(seen.w)};
  __shared__ double sums[8];
  __shared__ int4 all[8];
  if (threadIdx.x % 32 == 0) {
    sums[threadIdx.x / 32] = sum;
    all[threadIdx.x / 32] = seen;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < 8; ++warp) {
    sum += sums[warp];
    seen = {seen.x + all[warp].x, seen.y + all[warp].y, seen.z + all[warp].z, seen.w + all[warp].w};
  }
  squares[tile] = sum;
  counts[tile] = seen;
}
"""


@functools.cache
def _kernel(xp: Any, word: str) -> Any:
    limits = (f"-DLIMIT_ABSOLUTE={PTXBENCH_ATOL}", f"-DLIMIT_RELATIVE={PTXBENCH_RTOL}")
    name = f"measure<{word}>"
    module = xp.RawModule(code=_SOURCE, options=("-std=c++17", *limits), name_expressions=(name,))
    return module.get_function(name)


def _by_kernel(found: Any, reference: Any, ideal: Any | None) -> TileSums:
    xp = numbers.namespace(found)
    is_bf16 = found.dtype.itemsize == 2
    grid = tile_grid(found.shape)
    tiles = math.prod(grid)
    rows, columns = _rows_and_columns(found.shape)
    packed = xp.empty((3, tiles), xp.float64)  # four 32-bit counts a tile, then squares: one copy brings both home
    arguments = (
        found,
        reference,
        np.uintp(0) if ideal is None else ideal,
        numbers.POISON["bf16" if is_bf16 else "fp32"],
        np.int64(rows),
        np.int64(columns),
        packed[2],
        packed[:2],
    )
    _kernel(xp, "unsigned short" if is_bf16 else "unsigned int")((tiles,), (256,), arguments)
    home = numbers.on_host(packed)
    counts = home[:2].reshape(-1).view(np.int32).reshape(tiles, 4).astype(np.int64)
    unwritten, inexact, far = (int(total) for total in counts[:, 1:].sum(axis=0))
    return TileSums(home[2].reshape(grid), counts[:, 0].reshape(grid), unwritten, inexact, far)
