"""Reference of C = A·Bᵀ, written once for numpy and cupy (`xp`). Inputs are float32 arrays that hold BF16 values."""

# Hopper's tensor cores align each group of 16 products and the sum so far to the largest of them and cut what falls
# below about 25 fractional bits (arXiv 2511.10909); sums kept in FP32 hold 24. A cut loses half a unit in the last
# place on average, 2⁻²⁴ of the sum, and always toward zero, so over the steps it adds up.
STEP_ERROR = 2.0**-24
STEP_TERMS = 16
# Sums that grow to half of Σ|a·b| and then cancel, the worst that inputs can do, are a quarter of it on average.
MEAN_SUM = 0.25


def reference(xp, inputs, axes):
    """Return C [M, N] in float64."""
    return {"C": inputs["A"].astype(xp.float64) @ inputs["B"].astype(xp.float64).T}


def ideal(xp, inputs, axes, to_bf16):
    """Return C [M, N] as FP32 accumulation and one rounding to BF16 give it."""
    return {"C": to_bf16(inputs["A"] @ inputs["B"].T)}


def accumulation(xp, inputs, axes):
    """Return what FP32 accumulation may lose [M, N]: in steps of 16 terms, by truncation, on the worst inputs."""
    magnitude = xp.abs(inputs["A"]) @ xp.abs(inputs["B"]).T
    return {"C": STEP_ERROR * (axes["K"] / STEP_TERMS) * MEAN_SUM * magnitude}


def predictors(xp, inputs, axes, outputs):
    """Return what trivial programs would write: zeros, means, an input, and sums over A and B alone."""
    a, b, c = inputs["A"], inputs["B"], outputs["C"]
    sum_a, sum_b = a.sum(axis=1, keepdims=True), b.sum(axis=1, keepdims=True)
    mean_a, mean_b = float(a.mean()), float(b.mean())
    column_a, column_b = a.mean(axis=0), b.mean(axis=0)
    rows, columns = (a @ column_b)[:, None], (b @ column_a)[None, :]

    def spread(values):
        return {"C": xp.broadcast_to(values, c.shape)}

    return {
        "zeros": spread(xp.zeros((1, 1))),
        "the mean of C": spread(c.mean(keepdims=True)),
        "a repeated input": {"C": xp.resize(a, c.shape)},
        "row sums": spread(sum_a * mean_b),
        "column sums": spread(sum_b.T * mean_a),
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


def factors(xp, inputs, axes, output, region):
    """Return what is multiplied for C[region]: rows of A [rows, K] and of B [columns, K]."""
    rows, columns = region
    return inputs["A"][rows], inputs["B"][columns]
