"""Reference of attention forward under a causal mask."""

from ..attention.forward import Forward

attention = Forward(causal=True)
reference = attention.reference
ideal = attention.ideal
accumulation = attention.accumulation
rounding = attention.rounding
predictors = attention.predictors
terms = attention.terms
