"""Places where plans run, behind one protocol."""
