"""The command `ptxgym`."""

from ptxgym.cli.main import main

__all__ = ["main"]
