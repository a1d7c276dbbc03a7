"""Reference of attention backward under a causal mask."""

from ..attention.backward import Backward

attention = Backward(causal=True)
derived = attention.derived
reference = attention.reference
ideal = attention.ideal
accumulation = attention.accumulation
rounding = attention.rounding
predictors = attention.predictors
terms = attention.terms
