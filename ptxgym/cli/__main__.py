"""`python -m ptxgym.cli`."""

from ptxgym.cli import main

main()
