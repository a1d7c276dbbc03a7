"""Judging: what a device did with a plan against what the task asks for."""
