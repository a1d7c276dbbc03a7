"""Readable names for mangled C++ symbols in messages, by the C++ runtime's own demangler where it is installed."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable

_MANGLED = re.compile(r"(?<!\w)_Z\w+")
_REFERENCE = re.compile(r"(?=S(?P<part>[0-9A-Z]*)_)|(?P<argument>(?=T[0-9]*_)|(?=cv))|(?P<pack>(?=Dp|s[pPZ]))")
_MAX_NAME_CHARS = 1024
_MAX_READABLE_CHARS = 4 << 10
_MAX_BOUND_CHARS = 32 << 10
"""Of what is demangled at all: the bound is often far above the length."""
_ANONYMOUS_HASH = re.compile(r"_GLOBAL__N__[0-9a-f]+_\w+")


def demangle(name: str) -> str:
    """Return the C++ name behind the mangled `name`, with anonymous namespaces as `(anonymous namespace)`.

    Names that are not mangled, that the runtime cannot read, or that could be very long come back as they are.
    """
    plain = name
    if name.startswith("_Z") and _bound_chars(name) <= _MAX_BOUND_CHARS:
        found = _runtime()(name)
        plain = found if len(found) <= _MAX_READABLE_CHARS else name
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


def _bound_chars(name: str) -> int:
    """Return a bound on what `name` stands for, but for a factor that is constant: a letter can be a type's.

    A part that came before is repeated by its number (`S_`, `S0_`, …: Itanium C++ ABI 5.1.10), so that 300 characters
    can stand for 70 GB. What a number repeats was there when a number as high first occurred. Letters of identifiers
    that look like references are counted as such.
    """
    if len(name) > _MAX_NAME_CHARS:
        return _MAX_BOUND_CHARS + 1
    chars, at, highest, part_chars, factor = 0, 0, -1, 0, 1
    for match in _REFERENCE.finditer(name):
        chars, at = chars + match.start() - at, match.start()
        if match["part"] is not None:
            number = int(match["part"], 36) + 1 if match["part"] else 0
            if number > highest:
                highest, part_chars = number, chars
            chars += part_chars
        else:  # an argument of a template, which may come later; or a pattern for each argument of a pack
            factor *= 2 if match["argument"] is not None else len(name)
        if chars * factor > _MAX_BOUND_CHARS:
            break
    return (chars + len(name) - at) * factor


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
