"""Vendor libraries for attention backward."""

from ..attention.baselines import backward

BASELINES = backward(causal=False)
