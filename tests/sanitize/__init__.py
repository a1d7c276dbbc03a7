"""Running tests on a core that is built with sanitizers; see `make sanitize`."""
