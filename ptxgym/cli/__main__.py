"""`python -m ptxgym.cli`."""

from ptxgym.cli.main import main

main()
