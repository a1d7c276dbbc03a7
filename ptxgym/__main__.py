"""`python -m ptxgym`."""

from ptxgym.cli import main

main()
