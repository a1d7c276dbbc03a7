"""What goes on record of a turn that handed in a proven solution: which one and what became of it, never its text.

Records are published. A model that was trained on one with an oracle in it has seen the answer to the task.
"""

from __future__ import annotations

import dataclasses

from ptxgym.agent.protocol import Reply
from ptxgym.episode import Turn
from ptxgym.feedback import render
from ptxgym.store.solutions import unquoted


def without_text(reply: Reply, turn: Turn, feedback_bytes: int) -> tuple[Reply, Turn]:
    """Return an answer and its turn without the solution's text, and without quotes of it."""
    verdict = unquoted(turn.verdict)
    said = (
        f"The proven solution {reply.solution}, SHA-256 {verdict.provenance.source_sha256}. It was judged; its text "
        "stays out of records.\n"
    )
    bare = dataclasses.replace(turn, source="", verdict=verdict, feedback=render(verdict, cap_bytes=feedback_bytes))
    return dataclasses.replace(reply, text=said), bare
