"""Reference of attention forward."""

from ..attention.forward import Forward

attention = Forward(causal=False)
reference = attention.reference
ideal = attention.ideal
accumulation = attention.accumulation
rounding = attention.rounding
predictors = attention.predictors
terms = attention.terms
