"""Running tests on native code that is built with sanitizers; see `make sanitize`."""
