"""What syntax errors in generated texts usually come from: prose, typographic and invisible characters."""

from __future__ import annotations

import re
import unicodedata

_SENTENCE = re.compile(r"^[A-Z][\w'’-]*(?:[ ,]+[\w'’()/.-]+){3,}[ ]*[.:!]?$")
_CODE = re.compile(r"[;{}=<>#]|::|->|\(\)")
_STRAIGHT = {"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "–": "-", "—": "-", "−": "-"}

INVISIBLE_BREAK = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
"""What a terminal or Python takes for the end of a line, and no compiler does."""


def syntax_hint(source_line: str | None) -> str:
    """Return a sentence on what is wrong with the line of a syntax error, or nothing where it looks like code."""
    if source_line is None:
        return ""
    line = source_line.strip(" \t\r\n\f\v")  # what is white space to a compiler, no more
    for letter in line:
        if letter in _STRAIGHT:
            return f"the line holds the typographic character {letter} (U+{ord(letter):04X}): write {_STRAIGHT[letter]}"
        if letter in "\x85\u2028\u2029":
            name = unicodedata.name(letter, "next line").lower()
            what = f"the invisible character U+{ord(letter):04X} ({name})"
            return f"the line holds {what}: end the line by a plain newline"
        if unicodedata.category(letter) in ("Cf", "Zs") and letter != " ":
            name = unicodedata.name(letter, "an invisible character").lower()
            way_out = "remove it" if unicodedata.category(letter) == "Cf" else "write a plain space"
            return f"the line holds the invisible character U+{ord(letter):04X} ({name}): {way_out}"
    if _SENTENCE.match(line) and not _CODE.search(line):
        return "the line looks like prose: send the bare text of the file, and write remarks as // comments"
    return ""
