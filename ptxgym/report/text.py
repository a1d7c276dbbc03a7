"""Texts of submissions and models, made fit to be shown: nothing invisible, nothing that turns the line around."""

from __future__ import annotations

import re

LONGEST = 200_000
"""Characters of one text that a page holds; a submission may have ten million."""

# Control characters but tab and line feed, format characters, bidirectional controls, surrogates and tags: Unicode
# categories Cc, Cf, Cs, Zl and Zp. Half of "Trojan Source" (N. Boucher, R. Anderson, arXiv 2111.00169) is in here.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    r"""Return `text` with invisible characters spelled out, such as `\u202e`; line ends become line feeds."""
    return _UNSEEN.sub(_spelled, text.replace("\r\n", "\n"))


def shown(text: str) -> str:
    """Return what a page shows of a text: `visible`, and no more than `LONGEST` characters."""
    if len(text) <= LONGEST:
        return visible(text)
    return f"{visible(text[:LONGEST])}\n… {len(text) - LONGEST:,} more characters are not shown …"


def _spelled(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
