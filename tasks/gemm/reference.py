"""Reference of C = A·Bᵀ, written once for numpy and cupy (`xp`). Inputs are float32 arrays that hold BF16 values.

However A and B lie in memory, they are seen as A [M, K] and B [N, K]. Variants take each sum x through an epilogue: x
times `scale`, over 32, plus `bias`, through an activation, plus `residual`, in this order; what is not among the inputs
is left out.
"""

import math

# Hopper's tensor cores align each group of 16 products and the sum so far to the largest of them and cut what falls
# below about 25 fractional bits (arXiv 2511.10909); sums kept in FP32 hold 24. A cut loses half a unit in the last
# place on average, 2⁻²⁴ of the sum, and always toward zero, so over the steps it adds up.
STEP_ERROR = 2.0**-24
STEP_TERMS = 16
# Sums that grow to half of Σ|a·b| and then cancel, the worst that inputs can do, are a quarter of it on average.
MEAN_SUM = 0.25
# Sums of inputs with a mean do not cancel: they grow straight to |C|, half of it on average, and beside them the 16
# products of a step are cut too, each at 2⁻²⁵ of the power of two below the sum: with the cut of the sum at most
# 5 · 2⁻²⁴ of it. Simulated for 64 to 16384 terms: up to 0.41 of the budget in FP32, and 0.53 in steps of 8.
STRAIGHT_SUM = 2.0


def with_settings(activation="none", rounds=True, over_32=False):
    """Return the reference of a variant: `relu` or `gelu`, C in FP32 instead of BF16, sums divided by 32."""
    return Product(activation, rounds, over_32)


class Product:
    """The functions of this module, for one epilogue."""

    def __init__(self, activation="none", rounds=True, over_32=False):
        self.activation = {"none": lambda xp, x: x, "relu": relu, "gelu": gelu}[activation]
        self.is_linear = activation == "none"
        self.rounds = rounds
        self.over_32 = over_32

    def reference(self, xp, inputs, axes):
        """Return C [M, N] in float64."""
        return self.finish(xp, inputs, axes, inputs["A"].astype(xp.float64) @ inputs["B"].astype(xp.float64).T)

    def ideal(self, xp, inputs, axes, to_bf16):
        """Return C [M, N] as FP32 accumulation and one rounding to its type give it."""
        c = self.finish(xp, inputs, axes, inputs["A"] @ inputs["B"].T)["C"].astype(xp.float32)
        return {"C": to_bf16(c) if self.rounds else c}

    def accumulation(self, xp, inputs, axes):
        """Return what FP32 accumulation may lose [M, N]: in steps of 16 terms, by truncation, on the worst inputs."""
        mean = MEAN_SUM * (xp.abs(inputs["A"]) @ xp.abs(inputs["B"]).T)
        mean += STRAIGHT_SUM * xp.abs(inputs["A"] @ inputs["B"].T)
        lost = STEP_ERROR * (axes["K"] / STEP_TERMS) * mean
        return {"C": STEEPEST * xp.abs(self.factor(xp, inputs)) * lost if self.has_factor(inputs) else lost}

    def predictors(self, xp, inputs, axes, outputs):
        """Return what trivial programs would write: zeros, means, an input, and sums over A and B alone."""
        a, b, c = inputs["A"], inputs["B"], outputs["C"]
        sum_a, sum_b = a.sum(axis=1, keepdims=True), b.sum(axis=1, keepdims=True)
        mean_a, mean_b = float(a.mean()), float(b.mean())
        column_a, column_b = a.mean(axis=0), b.mean(axis=0)
        rows, columns = (a @ column_b)[:, None], (b @ column_a)[None, :]

        def spread(values):
            return {"C": xp.broadcast_to(values, c.shape)}

        def finished(sums):
            return self.finish(xp, inputs, axes, xp.broadcast_to(sums, c.shape))

        return {
            "zeros": spread(xp.zeros((1, 1))),
            "the mean of C": spread(c.mean(keepdims=True)),
            "a repeated input": {"C": xp.resize(a, c.shape)},
            "the epilogue of zeros": finished(xp.zeros((1, 1))),
            "row sums": finished(sum_a * mean_b),
            "column sums": finished(sum_b.T * mean_a),
            "row sums × column sums ÷ K": finished(sum_a * sum_b.T / axes["K"]),
            "row means + column means": finished(rows + columns - float(column_a @ column_b)),
        }

    def terms(self, xp, inputs, axes, output, region):
        """Return labels and parts [slices, rows, columns] of C[region], one for each 16 of K: what a kernel may miss.

        None where C is no sum of such parts.
        """
        if not self.is_linear:
            return None
        rows, columns = region
        a, b = inputs["A"][rows], inputs["B"][columns]
        slices = axes["K"] // 16
        labels = [f"k {16 * index}:{16 * index + 16}" for index in range(slices)]
        split_a = a[:, : 16 * slices].reshape(len(a), slices, 16).transpose(1, 0, 2)
        split_b = b[:, : 16 * slices].reshape(len(b), slices, 16).transpose(1, 2, 0)
        factor = xp.broadcast_to(self.factor(xp, inputs), (axes["N"],))[columns]
        return labels, ((split_a @ split_b) * factor).astype(xp.float64)

    def finish(self, xp, inputs, axes, sums):
        """Return C [M, N] from the sums over K, in their own precision."""
        x = sums * self.factor(xp, inputs).astype(sums.dtype) if self.has_factor(inputs) else sums
        if "bias" in inputs:
            x = x + inputs["bias"]
        x = self.activation(xp, x)
        return {"C": x + inputs["residual"] if "residual" in inputs else x}

    def has_factor(self, inputs):
        """Return whether sums are multiplied by anything."""
        return "scale" in inputs or self.over_32

    def factor(self, xp, inputs):
        """Return what each column of sums is multiplied by: [N] or [1], in float64."""
        factor = inputs["scale"].astype(xp.float64) if "scale" in inputs else xp.ones(1)
        return factor / 32 if self.over_32 else factor


STEEPEST = 1.13
"""Slope of GELU where it is steepest; that of ReLU is 1."""


def relu(xp, x):
    """Return max(x, 0)."""
    return xp.maximum(x, 0)


def gelu(xp, x):
    """Return x/2 · (1 + tanh u) with u = √(2/π) · (x + 0.044715 · x³): as x ÷ (1 + e⁻²ᵘ), in which nothing cancels."""
    u = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    return x / (1.0 + xp.exp(xp.minimum(-2.0 * u, 80.0)))  # beyond, FP32 overflows, and what is left is nothing


_PLAIN = Product()
reference = _PLAIN.reference
ideal = _PLAIN.ideal
accumulation = _PLAIN.accumulation
predictors = _PLAIN.predictors
terms = _PLAIN.terms


def factors(xp, inputs, axes, output, region):
    """Return what is multiplied for C[region]: rows of A [rows, K] and of B [columns, K]."""
    rows, columns = region
    return inputs["A"][rows], inputs["B"][columns]
