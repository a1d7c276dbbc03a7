"""Readable names for mangled C++ symbols in messages, by the C++ runtime's own demangler where it is installed."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable

_MANGLED = re.compile(r"(?<!\w)_Z\w+")
_ANONYMOUS_HASH = re.compile(r"_GLOBAL__N__[0-9a-f]+_\w+")


def demangle(name: str) -> str:
    """Return the C++ name behind the mangled `name`, with anonymous namespaces as `(anonymous namespace)`.

    Names that are not mangled, or that the runtime cannot read, come back as they are.
    """
    plain = _runtime()(name) if name.startswith("_Z") else name
    return _ANONYMOUS_HASH.sub("(anonymous namespace)", plain)


def demangle_all(text: str) -> str:
    """Return `text` with every mangled name in it replaced."""
    return _MANGLED.sub(lambda match: demangle(match.group()), text)


def function_name(mangled: str) -> str:
    """Return the qualified name with its template arguments, without result and parameter types."""
    name = demangle(mangled).replace("(anonymous namespace)::", "")
    depth = 0
    for at, char in enumerate(name):
        depth += (char == "<") - (char == ">")
        if char == "(" and depth == 0:
            name = name[:at]
            break
    return name.removeprefix("void ")


def name_functions(text: str) -> str:
    """Return `text` with every mangled name in it as `function_name` gives it, which is enough in a message."""
    return _MANGLED.sub(lambda match: function_name(match.group()), text)


@functools.cache
def _runtime() -> Callable[[str], str]:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return lambda name: name
    # char* __cxa_demangle(const char* name, char* buffer, size_t* length, int* status): Itanium C++ ABI 3.4
    function = library["__cxa_demangle"]
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free.restype = None

    def call(name: str) -> str:
        status = ctypes.c_int()
        found = function(name.encode(), None, None, ctypes.byref(status))
        if not found:
            return name
        try:
            return ctypes.string_at(found).decode(errors="replace")
        finally:
            free(found)

    return call
