"""Reference of attention backward."""

from ..attention.backward import Backward

attention = Backward(causal=False)
derived = attention.derived
reference = attention.reference
ideal = attention.ideal
accumulation = attention.accumulation
rounding = attention.rounding
predictors = attention.predictors
terms = attention.terms
