"""Random PTX against a slow interpreter, and random damage to real PTX: `python -m tests.fuzz --help`."""
