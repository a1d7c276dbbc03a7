"""Vendor libraries for causal attention backward."""

from ..attention.baselines import backward

BASELINES = backward(causal=True)
