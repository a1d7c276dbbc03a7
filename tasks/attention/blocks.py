"""How the attention references walk over heads and queries, so that at any size a few score matrices are held at once.

Tensors are [B, H, S, D], LSE is [B, H, S]. Everything is written once for numpy and cupy (`xp`).
"""

import math

MOST_SCORES = 1 << 24
"""Scores of one block: 128 MiB in float64."""

# Hopper's tensor cores align each group of 16 products and the sum so far to the largest of them and cut what falls
# below about 25 fractional bits (arXiv 2511.10909); sums kept in FP32 hold 24. A cut loses half a unit in the last
# place on average, always toward zero, so over the steps it adds up; sums that grow to half of Σ|a·b| and then cancel,
# the worst that inputs can do, are a quarter of it on average.
STEP_ERROR = 2.0**-24
STEP_TERMS = 16
MEAN_SUM = 0.25
# Scores are scaled, shifted by their maximum and turned into powers of two in FP32: three roundings at their own size.
SCORE_ERROR = 3 * 2.0**-24


def blocks(axes, causal):
    """Yield head (b, h), query rows as a slice, and how many keys the last of them sees."""
    size = axes["S"]
    rows = max(1, MOST_SCORES // size)
    for batch in range(axes["B"]):
        for head in range(axes["H"]):
            for start in range(0, size, rows):
                stop = min(start + rows, size)
                yield (batch, head), slice(start, stop), stop if causal else size


def scale(axes):
    """Return what scores are multiplied by: 1/√D."""
    return 1.0 / math.sqrt(axes["D"])


def hide(xp, scores, rows, causal, value):
    """Write `value` where a query would look ahead, in place; return the scores."""
    if causal:
        keys = scores.shape[1]
        scores[xp.arange(keys)[None, :] > xp.arange(rows.start, rows.stop)[:, None]] = value
    return scores


def seen(xp, axes, rows, causal):
    """Return how many keys each query of the block sees, as a column."""
    counts = xp.arange(rows.start + 1, rows.stop + 1) if causal else xp.full(rows.stop - rows.start, axes["S"])
    return counts.astype(xp.float32)[:, None]


def summing_error(terms):
    """Return what FP32 accumulation may lose of Σ|a·b| over so many terms."""
    return STEP_ERROR * max(1.0, terms / STEP_TERMS) * MEAN_SUM


def score_error(xp, query, key, scores, axes):
    """Return what FP32 may lose of each score."""
    return summing_error(axes["D"]) * scale(axes) * (xp.abs(query) @ xp.abs(key).T) + SCORE_ERROR * xp.abs(scores)
