"""Vendor libraries for causal attention forward."""

from ..attention.baselines import forward

BASELINES = forward(causal=True)
