"""The emulator: PTX decoded in Python, executed on the CPU by a C++ core in a worker process."""
