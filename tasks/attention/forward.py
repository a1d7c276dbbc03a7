"""Reference of attention forward: O = softmax(Q·Kᵀ/√D)·V and LSE, the natural log of Σ exp(scaled scores).

Inputs are float32 arrays that hold BF16 values. The ideal BF16 algorithm rounds P = exp(score − LSE) to BF16, since
tensor cores take no other operand, sums in FP32, and rounds O once. Dividing by the sum of P only afterwards loses less
where one key decides, whose P is then 1; both are right.
"""

from .blocks import blocks, hide, scale, score_error, seen, summing_error

P_ROUNDING = 2.0**-8
"""The most that rounding P to BF16 can change it by, relative. Algorithms place these roundings differently (which
maximum P refers to, whether it is normalised), so where few keys decide, one may lose what another does not."""
P_SUM_ERROR = 2.0**-9
"""LSE may sum P as rounded to BF16: independent relative errors of 0.42 · 2⁻⁸ (root mean square) each."""
LSE_ERROR = 2.0**-13
"""LSE itself: exp2 and log2 by approximation, such as polynomials of degree three (8.8e-5 in FlashAttention-4)."""


class Forward:
    """The functions of a forward task's `reference.py`."""

    def __init__(self, causal):
        self.causal = causal

    def reference(self, xp, inputs, axes):
        """Return O [B, H, S, D] and LSE [B, H, S] in float64."""
        query, key, value = (inputs[name] for name in "QKV")
        found = self._empty(xp, axes, xp.float64)
        for head, rows, keys in blocks(axes, self.causal):
            q, k, v = (array.astype(xp.float64) for array in (query[head][rows], key[head][:keys], value[head][:keys]))
            scores = hide(xp, q @ k.T * scale(axes), rows, self.causal, -xp.inf)
            maximum = scores.max(axis=1, keepdims=True)
            p = xp.exp(scores - maximum)
            total = p.sum(axis=1, keepdims=True)
            found["O"][head][rows] = p @ v / total
            found["LSE"][head][rows] = (maximum + xp.log(total))[:, 0]
        return found

    def ideal(self, xp, inputs, axes, to_bf16):
        """Return O and LSE in FP32 with P and O rounded to BF16."""
        query, key, value = (inputs[name] for name in "QKV")
        found = self._empty(xp, axes, xp.float32)
        for head, rows, keys in blocks(axes, self.causal):
            scores = query[head][rows] @ key[head][:keys].T * xp.float32(scale(axes))
            scores = hide(xp, scores, rows, self.causal, -xp.inf)
            maximum = scores.max(axis=1, keepdims=True)
            p = xp.exp(scores - maximum)
            total = p.sum(axis=1, keepdims=True)
            found["O"][head][rows] = to_bf16(to_bf16(p / total) @ value[head][:keys])
            found["LSE"][head][rows] = (maximum + xp.log(total))[:, 0]
        return found

    def accumulation(self, xp, inputs, axes):
        """Return what FP32 accumulation may lose of O and LSE, and for LSE what a sum of rounded P may."""
        query, key, value = (inputs[name] for name in "QKV")
        lost = self._empty(xp, axes, xp.float32)
        for head, rows, keys in blocks(axes, self.causal):
            k, v = key[head][:keys], xp.abs(value[head][:keys])
            p, scores = self._softmax(xp, query[head][rows], k, rows, axes)
            by_score = p * score_error(xp, query[head][rows], k, scores, axes)
            lost["O"][head][rows] = by_score @ v + summing_error(keys) * (p @ v)
            rounded = P_SUM_ERROR * xp.sqrt(xp.square(p).sum(axis=1))
            lost["LSE"][head][rows] = LSE_ERROR + by_score.sum(axis=1) + rounded
        return lost

    def rounding(self, xp, inputs, axes):
        """Return what roundings of P move elements of O by, in an algorithm that places them in its own way."""
        moved = self._empty(xp, axes, xp.float32)
        moved["LSE"][:] = 0.0
        for head, rows, keys in blocks(axes, self.causal):
            p, _ = self._softmax(xp, inputs["Q"][head][rows], inputs["K"][head][:keys], rows, axes)
            squares = xp.square(p) @ xp.square(inputs["V"][head][:keys])
            moved["O"][head][rows] = P_ROUNDING * xp.sqrt(squares)
        return moved

    def predictors(self, xp, inputs, axes, outputs):
        """Return what programs write that compute no scores: zeros, means, an input, and expansions for flat scores."""
        query, key, value = (inputs[name] for name in "QKV")
        flat, linear = (self._empty(xp, axes, xp.float32) for _ in range(2))
        for head, rows, keys in blocks(axes, self.causal):
            q, k, v = query[head][rows], key[head][:keys], value[head][:keys]
            count = seen(xp, axes, rows, self.causal)
            scores = hide(xp, q @ k.T * xp.float32(scale(axes)), rows, self.causal, 0.0)
            mean = scores.sum(axis=1, keepdims=True) / count
            weights = hide(xp, xp.broadcast_to(1.0 / count, scores.shape).copy(), rows, self.causal, 0.0)
            variance = xp.square(scores).sum(axis=1, keepdims=True) / count - xp.square(mean)
            flat["O"][head][rows] = weights @ v
            flat["LSE"][head][rows] = xp.log(count)[:, 0]
            linear["O"][head][rows] = weights * (1.0 + scores - mean) @ v
            linear["LSE"][head][rows] = (xp.log(count) + mean + variance / 2)[:, 0]
        output, lse = outputs["O"], outputs["LSE"]

        def spread(o, at):
            return {"O": xp.broadcast_to(o, output.shape), "LSE": xp.broadcast_to(at, lse.shape)}

        zero = xp.zeros(1)
        return {
            "zeros": spread(zero, zero),
            "the mean of each output": spread(output.mean(), lse.mean()),
            "means over the queries": spread(output.mean(axis=2, keepdims=True), lse.mean(axis=2, keepdims=True)),
            "V": {"O": value, "LSE": xp.broadcast_to(zero, lse.shape)},
            "the mean of V, log of the number of keys": flat,
            "scores to first order": linear,
        }

    def terms(self, xp, inputs, axes, output, region):
        """Return what leaving out each block of 64 keys takes from O[region]; None for LSE."""
        if output != "O":
            return None
        (batch, head), (rows, columns) = (slices.start for slices in region[:2]), region[2:]
        keys = rows.stop if self.causal else axes["S"]
        value = inputs["V"][batch, head][:keys, columns]
        p, _ = self._softmax(xp, inputs["Q"][batch, head][rows], inputs["K"][batch, head][:keys], rows, axes)
        whole = p @ value
        labels, parts = [], []
        for start in range(0, keys, 64):
            part = slice(start, min(start + 64, keys))
            weight = p[:, part].sum(axis=1, keepdims=True)
            labels.append(f"keys {start}:{part.stop}")
            parts.append((p[:, part] @ value[part] - weight * whole) / xp.maximum(1.0 - weight, 1e-6))
        return labels, xp.stack(parts).astype(xp.float64)

    def _softmax(self, xp, query, key, rows, axes):
        """Return P, normalised, and the scores that it comes from (0 where hidden), in float32."""
        scores = hide(xp, query @ key.T * xp.float32(scale(axes)), rows, self.causal, -xp.inf)
        p = xp.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        return p, hide(xp, scores, rows, self.causal, 0.0)

    def _empty(self, xp, axes, dtype):
        sizes = axes["B"], axes["H"], axes["S"]
        return {"O": xp.empty((*sizes, axes["D"]), dtype), "LSE": xp.empty(sizes, dtype)}
