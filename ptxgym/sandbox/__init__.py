"""Runs untrusted programs, and trusted ones on untrusted input, under limits; leaves no process of theirs behind."""

from ptxgym.sandbox.isolation import Isolation, Level, isolation
from ptxgym.sandbox.process import Access, Completed, Ended, Limits, Process, run, spawn

__all__ = ["Access", "Completed", "Ended", "Isolation", "Level", "Limits", "Process", "isolation", "run", "spawn"]
