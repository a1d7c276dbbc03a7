"""Reference of attention backward: dQ, dK, dV as functions of Q, K, V, O, dO and LSE.

P = exp(scaled score − LSE), delta = Σ_d dO∘O, dS = P∘(dO·Vᵀ − delta); dV = Pᵀ·dO, dQ = dS·K/√D, dK = dSᵀ·Q/√D. O
and LSE are inputs, already rounded to their types: what follows from those roundings belongs to the result.
The ideal BF16 algorithm rounds P and dS to BF16, since tensor cores take no other operand, sums in FP32, and rounds
each gradient once.
"""

from .blocks import blocks, hide, scale, score_error, seen, summing_error
from .forward import Forward

ROUNDING = 2.0**-8
"""The most that rounding P or dS to BF16 can change it by, relative. Algorithms place these roundings differently
(dS is multiplied by 1/√D before or after), so where few terms decide, one may lose what another does not."""
LSE_ERROR = 2.0**-24
"""Scores and LSE may be turned to powers of two each with a rounding of its own."""


class Backward:
    """The functions of a backward task's `reference.py`."""

    def __init__(self, causal):
        self.causal = causal

    def derived(self, xp, inputs, axes):
        """Return O and LSE of the drawn Q, K and V, in float64."""
        return Forward(self.causal).reference(xp, inputs, axes)

    def reference(self, xp, inputs, axes):
        """Return dQ, dK and dV [B, H, S, D] in float64."""
        found = self._zeros(xp, axes, xp.float64)
        for head, rows, keys in blocks(axes, self.causal):
            q, k, v, o, do, lse = self._block(inputs, head, rows, keys, xp.float64)
            p, _, ds = self._gradient(xp, q, k, v, o, do, lse, rows, axes)
            self._add(found, head, rows, keys, scale(axes) * (ds @ k), scale(axes) * (ds.T @ q), p.T @ do)
        return found

    def ideal(self, xp, inputs, axes, to_bf16):
        """Return the gradients in FP32 with P, dS and the results rounded to BF16."""
        found = self._zeros(xp, axes, xp.float32)
        factor = xp.float32(scale(axes))
        for head, rows, keys in blocks(axes, self.causal):
            q, k, v, o, do, lse = self._block(inputs, head, rows, keys, xp.float32)
            p, _, ds = self._gradient(xp, q, k, v, o, do, lse, rows, axes)
            p, ds = to_bf16(p), to_bf16(ds)
            self._add(found, head, rows, keys, factor * (ds @ k), factor * (ds.T @ q), p.T @ do)
        return {name: to_bf16(values) for name, values in found.items()}

    def accumulation(self, xp, inputs, axes):
        """Return what FP32 accumulation may lose of each gradient."""
        lost = self._zeros(xp, axes, xp.float32)
        factor = xp.float32(scale(axes))
        for head, rows, keys in blocks(axes, self.causal):
            q, k, v, o, do, lse = self._block(inputs, head, rows, keys, xp.float32)
            p, scores, ds = self._gradient(xp, q, k, v, o, do, lse, rows, axes)
            of_score = score_error(xp, q, k, scores, axes) + LSE_ERROR * xp.abs(lse)[:, None]
            q, k, v, o, do, ds = (xp.abs(array) for array in (q, k, v, o, do, ds))
            of_product = summing_error(axes["D"]) * (do @ v.T + (do * o).sum(axis=1, keepdims=True))
            of_ds = p * of_product + ds * of_score + summing_error(axes["S"]) * ds
            of_p = p * of_score + summing_error(axes["S"]) * p
            self._add(lost, head, rows, keys, factor * (of_ds @ k), factor * (of_ds.T @ q), of_p.T @ do)
        return lost

    def rounding(self, xp, inputs, axes):
        """Return what roundings of P and dS move elements by, in an algorithm that places them in its own way."""
        squares = self._zeros(xp, axes, xp.float64)
        factor = scale(axes) ** 2
        for head, rows, keys in blocks(axes, self.causal):
            q, k, v, o, do, lse = self._block(inputs, head, rows, keys, xp.float64)
            p, _, ds = self._gradient(xp, q, k, v, o, do, lse, rows, axes)
            q, k, do, p, ds = (xp.square(array) for array in (q, k, do, p, ds))
            self._add(squares, head, rows, keys, factor * (ds @ k), factor * (ds.T @ q), p.T @ do)
        return {name: ROUNDING * xp.sqrt(sums) for name, sums in squares.items()}

    def predictors(self, xp, inputs, axes, outputs):
        """Return what programs write that compute no softmax: zeros, means, inputs, and expansions for flat scores."""
        flat, linear = (self._zeros(xp, axes, xp.float32) for _ in range(2))
        factor = xp.float32(scale(axes))
        for head, rows, keys in blocks(axes, self.causal):
            q, k, v, _, do, _ = self._block(inputs, head, rows, keys, xp.float32)
            count = seen(xp, axes, rows, self.causal)
            scores = hide(xp, q @ k.T * factor, rows, self.causal, 0.0)
            equal = hide(xp, xp.broadcast_to(1.0 / count, scores.shape).copy(), rows, self.causal, 0.0)
            sloped = equal * (1.0 + scores - scores.sum(axis=1, keepdims=True) / count)
            product = do @ v.T
            for found, p in ((flat, equal), (linear, sloped)):
                ds = p * (product - (p * product).sum(axis=1, keepdims=True))
                self._add(found, head, rows, keys, factor * (ds @ k), factor * (ds.T @ q), p.T @ do)

        def spread(value):
            return {name: xp.broadcast_to(value(output), output.shape) for name, output in outputs.items()}

        return {
            "zeros": spread(lambda output: xp.zeros(1)),
            "the mean of each gradient": spread(lambda output: output.mean()),
            "means over the sequence": spread(lambda output: output.mean(axis=2, keepdims=True)),
            "inputs": {"dQ": inputs["Q"], "dK": inputs["K"], "dV": inputs["dO"]},
            "equal weights": flat,
            "scores to first order": linear,
        }

    def terms(self, xp, inputs, axes, output, region):
        """Return the parts of a gradient's region: of each 64 keys for dQ, of each 64 queries for dK and dV."""
        (batch, head), (rows, columns) = (slices.start for slices in region[:2]), region[2:]
        by_key, size = output == "dQ", axes["S"]
        first = rows.start if self.causal and not by_key else 0
        last = rows.stop if self.causal and by_key else size
        labels, parts = [], []
        for start in range(first // 64 * 64, last, 64):
            part = slice(start, min(start + 64, size))
            queries, keys = (rows, part) if by_key else (part, rows)
            q, do, o = (inputs[name][batch, head][queries] for name in ("Q", "dO", "O"))
            k, v = (inputs[name][batch, head][keys] for name in "KV")
            scores = q @ k.T * xp.float32(scale(axes))
            if self.causal:
                ahead = xp.arange(size)[keys][None, :] > xp.arange(size)[queries][:, None]
                scores[ahead] = -xp.inf
            p = xp.exp(scores - inputs["LSE"][batch, head][queries][:, None])
            ds = p * (do @ v.T - (do * o).sum(axis=1, keepdims=True)) * xp.float32(scale(axes))
            found = {"dQ": (ds, k), "dK": (ds.T, q), "dV": (p.T, do)}[output]
            labels.append(f"{'keys' if by_key else 'queries'} {start}:{part.stop}")
            parts.append(found[0] @ found[1][:, columns])
        return labels, xp.stack(parts).astype(xp.float64)

    def _block(self, inputs, head, rows, keys, dtype):
        """Return Q, K, V, O, dO and LSE of some queries of a head and the keys that they see."""
        arrays = [inputs[name][head] for name in ("Q", "K", "V", "O", "dO", "LSE")]
        ranges = (rows, slice(keys), slice(keys), rows, rows, rows)
        return [array[own].astype(dtype) for array, own in zip(arrays, ranges, strict=True)]

    def _gradient(self, xp, q, k, v, o, do, lse, rows, axes):
        """Return P, the scores that it comes from (0 where hidden), and dS without the factor 1/√D."""
        scores = hide(xp, q @ k.T * q.dtype.type(scale(axes)), rows, self.causal, -xp.inf)
        p = xp.exp(scores - lse[:, None])
        delta = (do * o).sum(axis=1, keepdims=True)
        return p, hide(xp, scores, rows, self.causal, 0.0), p * (do @ v.T - delta)

    def _add(self, found, head, rows, keys, dq, dk, dv):
        found["dQ"][head][rows] += dq
        found["dK"][head][:keys] += dk
        found["dV"][head][:keys] += dv

    def _zeros(self, xp, axes, dtype):
        sizes = tuple(axes[axis] for axis in "BHSD")
        return {name: xp.zeros(sizes, dtype) for name in ("dQ", "dK", "dV")}
