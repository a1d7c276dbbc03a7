"""Why a rationale cannot be trained on.

A model that is to find repairs must not learn to speak as if it had one: not to name a repair that it was given, not to
quote it before its cause is derived, not to recite it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ptxgym.fixit.recipe import RationaleRules
from ptxgym.similarity import contained, shingles, tokens
from ptxgym.store.records import Message

LEAST_TOKENS = 5
"""Of a line that counts as quoted: shorter ones stand anywhere."""
CANARY = "texts of this benchmark must not be trained on"
"""What the line says that carries a run's canary (`ptxgym.agent.prompting`)."""
_GIVEN = r"(?:given|provided|supplied|attached|intended|known|official)"
_MENDED = r"(?:corrected|fixed|repaired|mended|reference|target|golden|patched)"
_TEXT = r"(?:kernel|code|version|file|source|implementation|solution|answer)"
_WAS = r"(?:was|were|am|are|have been|had been)"
_NAMED = re.compile(
    rf"\b(?:the|this|that|your|their)\s+(?:{_GIVEN}\s+)?{_MENDED}\s+{_TEXT}\b"
    rf"|\b(?:the|this|that|your|their)\s+{_GIVEN}\s+(?:fix|repair|solution|correction|answer|patch)\b"
    rf"|\b(?:the|this|that)\s+(?:fix|repair|solution|answer|patch)\s+(?:that\s+)?(?:I|we)\s+{_WAS}\b"
    rf"|\b(?:I|we)\s+{_WAS}\s+(?:given|shown|told|handed)\b"
    r"|\b(?:compar\w+|diff)\b[^.\n]{0,60}\b(?:with|to|against|between|and)\b[^.\n]{0,30}"
    r"\b(?:repair|fix|solution|fixed|corrected)\b"
    r"|\b(?:ground[ -]truth|oracle (?:kernel|solution)|answer key)\b"
    r"|\blook(?:ing)? at the (?:repair|fix|solution|answer|diff|patch)\b",
    re.IGNORECASE,
)


def leaks(
    text: str,
    rules: RationaleRules,
    *,
    repair: str,
    wrong: str = "",
    shown: str = "",
    canaries: Iterable[str] = (),
) -> tuple[str, ...]:
    """Return why a rationale cannot be used, as codes; none where it can.

    Args:
        text: The rationale.
        rules: What is wanted of it.
        repair: The kernel at which it arrives.
        wrong: The kernel from which it starts; empty for a direct one, which may be quoted no less than any.
        shown: What else the reader sees before, task and feedback: what stands there gives nothing away.
        canaries: Strings of runs.

    Returns:
        `too_short`, `too_long`, `canary`, `names_repair`, `quotes_early` or `recites`.
    """
    found = []
    if len(text.strip()) < rules.least_chars:
        found.append("too_short")
    if len(text) > rules.most_chars:
        found.append("too_long")
    if has_canary(text, canaries):
        found.append("canary")
    if _NAMED.search(text):
        found.append("names_repair")
    early = _joined(tokens(text[: int(len(text) * rules.quiet_share)]))
    if wrong and any(line in early for line in new_lines(repair, f"{wrong}\n{shown}")):
        found.append("quotes_early")
    if contained(shingles(repair), shingles(text)) > rules.quoted_share:
        found.append("recites")
    return tuple(found)


def new_lines(repair: str, before: str) -> Iterator[str]:
    """Yield the lines of a repair that stand nowhere before, as tokens; trivially short ones aside."""
    known = _joined(tokens(before))
    for line in repair.splitlines():
        found = tokens(line)
        if len(found) >= LEAST_TOKENS and (joined := _joined(found)) not in known:
            yield joined


def has_canary(text: str, canaries: Iterable[str]) -> bool:
    """Return whether a text holds a canary, or the line that carries one."""
    return CANARY in text or any(canary and canary in text for canary in canaries)


def any_canary(messages: Iterable[Message], canaries: Iterable[str]) -> bool:
    """Return whether any message holds a canary."""
    known = tuple(canaries)
    return any(has_canary(message.content, known) for message in messages)


def _joined(found: tuple[str, ...]) -> str:
    return f" {' '.join(found)} "
