"""Episodes as the viewer reads them: one packed JSON value each, with the difference to the kernel before.

A chunk is compressed and in base64, so that a page of a thousand turns stays small and no text of a submission is ever
part of the page's markup. The viewer unpacks an episode when it is chosen, and writes texts as text only.
"""

from __future__ import annotations

import base64
import difflib
import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ptxgym.report.text import shown, visible
from ptxgym.store.records import EpisodeRecord, TurnRecord
from ptxgym.task import load_arch
from ptxgym.verdict import Finding, Verdict

AUTOJUNK_LINES = 3000
"""From here on lines that are frequent are ignored when kernels are compared: the exact way would take seconds."""


@dataclass(frozen=True)
class Entry:
    """An episode in the list of the viewer."""

    data: dict[str, Any]
    chunk: str
    """gzip, base64."""


class _Table:
    """Values that occur again and again, by number."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._known: dict[Any, int] = {}

    def __call__(self, item: Any) -> int:
        if item not in self._known:
            self._known[item] = len(self.items)
            self.items.append(item)
        return self._known[item]


def entry(run: str, episode: EpisodeRecord, turns: Sequence[TurnRecord], *, target: bool, emulated: bool) -> Entry:
    """Return an episode for the viewer.

    Args:
        run: Name of its run.
        episode: Its record.
        turns: Its turns, first to last.
        target: Whether one of its kernels is right and runs on target instructions.
        emulated: Whether its kernels were emulated.
    """
    lines, texts = _Table(), _Table()
    kernels: dict[int, list[int]] = {}
    packed = []
    for turn in turns:
        kernels[turn.turn] = [lines(line) for line in shown(turn.source).split("\n")] if turn.source else []
        before = kernels.get(turn.parent_turn or 0)
        packed.append({**_turn(turn, texts), "rows": rows(before, kernels[turn.turn])})
    whole = {"lines": lines.items, "texts": texts.items, "turns": packed}
    raw = gzip.compress(json.dumps(whole, ensure_ascii=True, separators=(",", ":")).encode(), mtime=0)
    data = {
        "id": visible(episode.id),
        "run": visible(run),
        "task": visible(episode.id.rsplit("/", 3)[0].removesuffix("/base")),
        "agent": visible(episode.agent),
        "arm": visible(episode.arm),
        "trajectory": episode.trajectory,
        "status": episode.status,
        "problem": visible(episode.problem or episode.ended),
        "judged": "emulated" if emulated else "measured",
        "scores": [turn.score for turn in turns],
        "best": episode.best_score,
        "outcome": "target" if target else "right" if any(t.verdict.status == "ok" for t in turns) else "failed",
    }
    return Entry(data, base64.b64encode(raw).decode())


def rows(before: Sequence[int] | None, after: Sequence[int]) -> list[tuple[str, int]]:
    """Return the difference of two kernels line by line: ` `, `+` or `-`, and the line's number in the table."""
    if before is None:
        return [(" ", line) for line in after]
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=max(len(before), len(after)) > AUTOJUNK_LINES)
    found: list[tuple[str, int]] = []
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            found += [(" ", line) for line in after[c:d]]
        else:
            found += [("-", line) for line in before[a:b]]
            found += [("+", line) for line in after[c:d]]
    return found


def _turn(turn: TurnRecord, texts: _Table) -> dict[str, Any]:
    verdict = turn.verdict
    usage = turn.usage
    return {
        "turn": turn.turn,
        "parent": turn.parent_turn,
        "solution": visible(turn.solution),
        "device": visible(verdict.provenance.device or ""),
        "status": str(verdict.status),
        "code": visible(verdict.code),
        "stage": str(verdict.stage),
        "message": shown(verdict.message),
        "score": turn.score,
        "best": turn.best_score,
        "reward": turn.reward,
        "terms": [[visible(name), value] for name, value in turn.terms.items()],
        "marks": list(_marks(verdict)),
        "evidence": _evidence(verdict),
        "outputs": [
            {
                "name": visible(each.name), "ok": each.ok, "error": f"{each.relative_error:.2e}",
                "budget": f"{each.relative_budget:.2e}", "region": visible(each.worst_region or ""),
                "pattern": visible(each.pattern or ""), "fits": [visible(text) for text in each.explanations],
            }
            for each in verdict.outputs
        ],
        "speed": _speed(verdict),
        "feedback": texts(shown(turn.feedback)),
        "response": texts(shown(turn.response)),
        "reasoning": texts(shown(turn.reasoning)) if turn.reasoning else None,
        "messages": [[each.role, texts(shown(each.content))] for each in turn.messages],
        "notes": [visible(note) for note in turn.notes],
        "model": visible(turn.model),
        "finish": visible(turn.finish_reason),
        "refused": turn.refused,
        "attempts": turn.attempts,
        "tokens": [usage.prompt_tokens, usage.completion_tokens],
        "cost": usage.cost_usd,
        "seconds": [round(turn.model_s, 1), round(turn.evaluate_s, 1)],
    }  # fmt: skip


def _marks(verdict: Verdict) -> Iterable[dict[str, Any]]:
    """Yield what is said about lines of the kernel, and what is said about none."""
    for diagnostic in verdict.diagnostics:
        yield {"line": diagnostic.line, "severity": str(diagnostic.severity), "text": shown(diagnostic.message)}
    for finding in verdict.findings:
        times = f" ({finding.count:,} times)" if finding.count > 1 else ""
        remedy = f"\nRemedy: {finding.remedy}" if finding.remedy else ""
        yield {
            "line": finding.line,
            "severity": str(finding.severity),
            "code": visible(finding.code),
            "text": shown(f"{finding.message}{times}{remedy}"),
        }
        yield from _parties(finding)


def _parties(finding: Finding) -> Iterable[dict[str, Any]]:
    for party in finding.parties:
        if party.line is not None and party.line != finding.line:
            yield {
                "line": party.line,
                "severity": "party",
                "code": visible(finding.code),
                "text": shown(f"{party.who} {party.did}"),
            }


def _evidence(verdict: Verdict) -> dict[str, Any] | None:
    found = verdict.evidence
    if found is None:
        return None
    target = load_arch(verdict.provenance.arch).matrix_families
    families = sorted(found.families.items(), key=lambda item: -item[1].warp_instructions)
    return {
        "source": visible(found.source),
        "workload": visible(found.workload),
        "coverage": found.coverage,
        "target": found.target_ok,
        "why": shown(found.explanation or ""),
        "families": [[visible(name), each.warp_instructions, name in target] for name, each in families],
    }


def _speed(verdict: Verdict) -> str:
    timing = verdict.measured.timing
    if timing is None:
        return ""
    return visible(
        f"{timing.speedup:.3f} ({timing.speedup_low:.3f}–{timing.speedup_high:.3f}) × {timing.baseline}: "
        f"{timing.candidate_us:,.1f} µs against {timing.baseline_us:,.1f} µs"
    )
