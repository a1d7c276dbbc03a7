"""Training recipes: SFT on a Fixit set, GRPO on the environment. TRL and PEFT do the work.

A run is a folder: the recipe as it was, numbers as JSON lines, checkpoints, and at the end the model. Recipes lie in
`configs/train/`; TRL and what comes with it are imported when a run begins.
"""
