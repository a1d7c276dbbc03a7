"""Vendor libraries for attention forward."""

from ..attention.baselines import forward

BASELINES = forward(causal=False)
