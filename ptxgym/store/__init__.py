"""Records of runs: written line by line, read back, judged again."""
