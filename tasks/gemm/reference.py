"""Reference of C = A·Bᵀ, written once for numpy and cupy (`xp`). Inputs are float32 arrays that hold BF16 values."""

# FP32 significands hold 24 bits. Hopper's tensor cores align each group of 16 products to the largest term and cut what
# falls below about 25 fractional bits (arXiv 2511.10909), so one step loses at most 2⁻²⁴ of the running magnitude, and
# twice that when it also truncates the sum.
STEP_ERROR = 2.0**-23
STEP_TERMS = 16


def reference(xp, inputs, axes):
    """Return C [M, N] in float64."""
    return {"C": inputs["A"].astype(xp.float64) @ inputs["B"].astype(xp.float64).T}


def ideal(xp, inputs, axes, to_bf16):
    """Return C [M, N] as FP32 accumulation and one rounding to BF16 give it."""
    return {"C": to_bf16(inputs["A"] @ inputs["B"].T)}


def accumulation(xp, inputs, axes):
    """Return a bound [M, N] on what FP32 accumulation may lose: steps of 16 terms, each relative to Σ|a·b|."""
    magnitude = xp.abs(inputs["A"]) @ xp.abs(inputs["B"]).T
    # Half the steps: partial sums grow to the full magnitude only at the end.
    steps = max(1.0, axes["K"] / STEP_TERMS / 2)
    return {"C": STEP_ERROR * steps * magnitude}


def predictors(xp, inputs, axes, outputs):
    """Return what trivial programs would write: zeros, means, an input, and sums over A and B alone."""
    a, b, c = inputs["A"], inputs["B"], outputs["C"]
    ones = xp.ones_like(c)
    sum_a, sum_b = a.sum(axis=1, keepdims=True), b.sum(axis=1, keepdims=True)
    mean_a, mean_b = float(a.mean()), float(b.mean())
    column_a, column_b = a.mean(axis=0), b.mean(axis=0)
    rows, columns = (a @ column_b)[:, None], (b @ column_a)[None, :]
    return {
        "zeros": {"C": 0 * ones},
        "the mean of C": {"C": float(c.mean()) * ones},
        "a repeated input": {"C": xp.resize(a, c.shape)},
        "row sums": {"C": sum_a * mean_b * ones},
        "column sums": {"C": (sum_b.T * mean_a) * ones},
        "row sums × column sums ÷ K": {"C": sum_a * sum_b.T / axes["K"]},
        "row means + column means": {"C": rows + columns - float(column_a @ column_b)},
    }


def terms(xp, inputs, axes, output, region):
    """Return labels and parts [slices, rows, columns] of C[region], one for each 16 of K: what a kernel may miss."""
    rows, columns = region
    a, b = inputs["A"][rows], inputs["B"][columns]
    slices = axes["K"] // 16
    labels = [f"k {16 * index}:{16 * index + 16}" for index in range(slices)]
    split_a = a.reshape(len(a), slices, 16).transpose(1, 0, 2)
    split_b = b.reshape(len(b), slices, 16).transpose(1, 2, 0)
    return labels, (split_a @ split_b).astype(xp.float64)
