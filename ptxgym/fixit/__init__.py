"""Fixit: training data made of repairs of one's own failures.

`mine` samples failed kernels of runs, `repair` has a teacher mend them and an evaluator judge what it hands in,
`rationalise` has a teacher write the way from the failure to the repair, and `build` filters, balances and writes chat
rows with a manifest. `docs/fixit.md` says what may be trained on, and why.
"""
