"""The charts of a report: correctness by turn, failure mix, speed-ups, cost against score.

What was emulated and what was measured never share a mark, a mean or a panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ptxgym.bench.metrics import Metric, comparable, failures_by_turn, rate
from ptxgym.report.drawing import ANCHOR_COLOUR, WIDTH, Chart, Series, colour_of_models, draw, joined, kinds
from ptxgym.report.text import visible

REASONS = (
    "ok", "wrong_output", "hazard", "hang", "runtime_fault", "budget", "launch_error", "plan_error", "not_emulated",
    "compile_error", "integrity", "rejected", "no_code", "truncated", "refused",
)  # fmt: skip
"""In the order in which they are stacked: what is right lies at the bottom, what never ran on top."""
_METRICS: tuple[tuple[Metric, str], ...] = (("correct", "right"), ("target", "right, on target instructions"))
_DOTTED = [3, 4]
_ANCHOR_TEXT = {"fontSize": 11, "color": "var(--muted)"}


def charts(series: Sequence[Series], turns: int) -> tuple[Chart, ...]:
    """Return all charts that have something to show."""
    drawn = (progress(series, turns), failures(series), speeds(series, turns), cost(series))
    return tuple(chart for chart in drawn if chart is not None)


def progress(series: Sequence[Series], turns: int) -> Chart:
    """Draw which share of the trajectories is right, and right on target instructions, within 1, 2, 3 … turns."""
    models = list(dict.fromkeys(one.agent for one in series if not one.anchor))
    kind_of = {kind: kind if len(kinds(series)) > 1 else "" for kind in kinds(series)}
    conditions = {kind: _conditions(series, kind) for kind in kind_of}
    panels = [joined(name, kind_of[kind]) for kind in kind_of for name in conditions[kind]]
    rows: list[dict[str, Any]] = [
        {
            "agent": visible(one.agent), "panel": joined(condition, kind_of[one.judged]), "metric": title,
            "turn": turn, "rate": found.value, "low": found.low, "high": found.high, "anchor": one.anchor,
            "at": turn if one.anchor else turn + 0.05 * (models.index(one.agent) - (len(models) - 1) / 2),
        }
        for one in series
        for condition in (conditions[one.judged] if one.anchor else (one.condition,))
        for metric, title in _METRICS
        for turn in range(1, comparable(one.found, turns) + 1)
        for found in (rate(one.found, turn, metric).interval,)
    ]  # fmt: skip
    _name_anchors(rows, turns)
    x = {"field": "at", "type": "quantitative", "title": "within … turns", "axis": _whole(turns)}
    x["scale"] = {"domain": [0.8, max(turns, 2) + 0.2], "nice": False}
    share = {"type": "quantitative", "title": None, "axis": {"format": ".0%", "tickCount": 5}}
    share["scale"] = {"domain": [0, 1]}
    colour = colour_of_models(series)
    of_models = {"transform": [{"filter": "!datum.anchor"}]}
    row: dict[str, Any] = {"field": "panel", "sort": panels}
    row["header"] = {"labels": panels != [""], "labelLimit": 190}
    spec = {
        "data": {"values": rows},
        "facet": {"column": {"field": "metric", "sort": [title for _, title in _METRICS]}, "row": row},
        "spec": {
            "width": 370,
            "height": 190,
            "layer": [
                {
                    "transform": [{"filter": "datum.anchor"}],
                    "mark": {"type": "line", "strokeWidth": 1.5, "strokeDash": _DOTTED, "color": ANCHOR_COLOUR},
                    "encoding": {"x": x, "y": {**share, "field": "rate"}, "detail": {"field": "agent"}},
                },
                _anchor_names(share, x, high=True),
                _anchor_names(share, x, high=False),
                {
                    **of_models,
                    "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.45},
                    "encoding": {"x": x, "y": {**share, "field": "low"}, "y2": {"field": "high"}, "color": colour},
                },
                {
                    **of_models,
                    "mark": {"type": "line", "strokeWidth": 2},
                    "encoding": {"x": x, "y": {**share, "field": "rate"}, "color": colour},
                },
                {
                    **of_models,
                    "mark": {"type": "point", "filled": True, "size": 44, "opacity": 1},
                    "encoding": {"x": x, "y": {**share, "field": "rate"}, "color": colour},
                },
            ],
        },
    }
    return Chart(
        "progress",
        "Correctness by turn",
        "Share of trajectories that hold a right kernel within so many turns, over all environments. Bars: 95 % "
        "intervals (Wilson) over trajectories. Dotted: anchors. A line ends with the turns that its agent was given.",
        draw(spec),
    )


def failures(series: Sequence[Series]) -> Chart | None:
    """Draw what the kernels of every turn came to."""
    models = [one for one in series if not one.anchor]
    apart = len(kinds(models)) > 1
    labels = [joined(one.label, one.judged if apart else "") for one in models]
    rows = [
        {"series": label, "turn": turn, "reason": _word(reason), "kernels": count, "order": _rank(reason)}
        for one, label in zip(models, labels, strict=True)
        for turn, mix in failures_by_turn(one.found).items()
        for reason, count in mix.items()
    ]
    if not rows:
        return None
    known = sorted({(int(str(row["order"])), str(row["reason"])) for row in rows})
    columns = len(labels) if len(labels) < 4 else next((count for count in (4, 3) if len(labels) % count == 0), 3)
    spec = {
        "data": {"values": rows},
        "facet": {"field": "series", "sort": labels, "header": {"labelLimit": 200}},
        "columns": columns,
        "spec": {
            "width": 180 if columns == 4 else 240,
            "height": 140,
            "mark": {"type": "bar", "width": {"band": 0.82}},
            "encoding": {
                "x": {"field": "turn", "type": "ordinal", "title": "turn", "axis": {"labelAngle": 0}},
                "y": {
                    "field": "kernels", "type": "quantitative", "stack": "normalize", "title": None,
                    "axis": {"format": ".0%", "tickCount": 4},
                },
                "color": {
                    "field": "reason",
                    "scale": {
                        "domain": [reason for _, reason in known],
                        "range": [f"var(--reason-{order})" for order, _ in known],
                    },
                },
                "order": {"field": "order", "type": "quantitative"},
            },
        },
    }  # fmt: skip
    return Chart(
        "failures",
        "Failure mix over turns",
        "What the kernels of each turn came to, as a share of those that were handed in; trajectories that have "
        "stopped are no longer in a bar.",
        draw(spec),
    )


def speeds(series: Sequence[Series], turns: int) -> Chart | None:
    """Draw the best measured speed-up of every trajectory; None where nothing was measured."""
    rows = [
        {"series": visible(one.label), "agent": visible(one.agent), "anchor": one.anchor, "speedup": fastest}
        for one in series
        for each in one.found
        if not one.emulated and (fastest := each.fastest(turns)) > 0
    ]
    if not rows:
        return None
    labels = [visible(one.label) for one in series]
    x = {
        "field": "speedup", "type": "quantitative", "title": "speed-up over the best vendor library (×, log scale)",
        "scale": {"type": "log", "nice": False, "padding": 16},
        "axis": {"values": [0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 4], "format": "~g"},
    }  # fmt: skip
    y = {"field": "series", "type": "nominal", "title": None, "sort": labels, "axis": {"grid": True, "labelLimit": 240}}
    colour = {**colour_of_models(series), "legend": None}
    spec = {
        "width": WIDTH,
        "height": {"step": 34},
        "data": {"values": rows},
        "layer": [
            {
                "mark": {"type": "rule", "strokeDash": _DOTTED, "color": ANCHOR_COLOUR},
                "encoding": {"x": {"datum": 1.0, "type": "quantitative"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 0.55},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": {"condition": {"test": "!datum.anchor", **colour}, "value": ANCHOR_COLOUR},
                },
            },
            {
                "mark": {"type": "tick", "thickness": 2, "size": 24, "color": "var(--ink)"},
                "encoding": {"x": {**x, "aggregate": "median"}, "y": y},
            },
        ],
    }
    return Chart(
        "speeds",
        "Speed-up",
        "The fastest target-correct kernel of every trajectory that has one, as it was first measured. Bar: median. "
        "Dotted line: as fast as the best vendor library.",
        draw(spec),
    )


def cost(series: Sequence[Series]) -> Chart | None:
    """Draw what every trajectory cost and what its best kernel scored; in tokens where a price is not known."""
    models = [one for one in series if not one.anchor]
    if not models:
        return None
    priced = all(each.cost_usd is not None for one in models for each in one.found)
    if not priced and all(each.tokens is None for one in models for each in one.found):
        return None
    shown = kinds(models)
    panels = [_cost_panel(series, kind, priced, WIDTH // len(shown) - 20 * (len(shown) - 1)) for kind in shown]
    if len(panels) > 1:
        panels = [{**panel, "title": kind} for kind, panel in zip(shown, panels, strict=True)]
    return Chart(
        "cost",
        "Cost against score",
        f"Small: a trajectory. Large: the mean of an agent. {'' if priced else 'In tokens: not every price is known. '}"
        "Dotted: mean score of the anchors. Right kernels on target instructions score 0.5; what is above is measured "
        "speed, so on the emulator there is nothing above.",
        draw({"hconcat": panels, "spacing": 50} if len(panels) > 1 else panels[0]),
    )


def _cost_panel(series: Sequence[Series], kind: str, priced: bool, width: int) -> dict[str, Any]:
    """Draw what was emulated, or what was measured."""
    found = [one for one in series if one.judged == kind]
    models = [one for one in found if not one.anchor]
    rows = [
        {
            "agent": visible(one.agent), "condition": visible(one.condition),
            "cost": each.cost_usd if priced else each.tokens, "score": max(o.score for o in each.outcomes),
        }
        for one in models
        for each in one.found
        if priced or each.tokens is not None
    ]  # fmt: skip
    anchors = [
        {
            "label": visible(one.agent),
            "score": sum(max(o.score for o in each.outcomes) for each in one.found) / len(one.found),
        }
        for one in found
        if one.anchor
    ]
    x: dict[str, Any] = {
        "field": "cost",
        "type": "quantitative",
        "title": "cost of a trajectory (US dollars)" if priced else "tokens of a trajectory",
        "axis": {
            "format": "~g" if priced else "~s",
            "tickCount": 6 if width > 400 else 4,
            "labelExpr": "datum.value ? datum.label : '0'",
        },
        "scale": {"nice": True, "zero": True},
    }
    if not any(float(str(row["cost"])) for row in rows):
        x["scale"] = {"domain": [0, 1]}
    highest = 1.0 if kind == "measured" else 0.55
    y = {"field": "score", "type": "quantitative", "title": "best score", "scale": {"domain": [0, highest]}}
    y["axis"] = {"tickCount": 6}
    conditions = list(dict.fromkeys(visible(one.condition) for one in models))
    marks = {"field": "condition", "sort": conditions, "legend": {"orient": "bottom"}}
    shape = {"shape": marks} if len(conditions) > 1 else {}
    colour = colour_of_models(series)
    of_anchor = {"y": y}
    return {
        "width": width,
        "height": 260,
        "layer": [
            {
                "data": {"values": anchors},
                "mark": {"type": "rule", "strokeDash": _DOTTED, "color": ANCHOR_COLOUR},
                "encoding": of_anchor,
            },
            {
                "data": {"values": anchors},
                "mark": {"type": "text", "align": "right", "dy": -6, "dx": -4, **_ANCHOR_TEXT},
                "encoding": {**of_anchor, "x": {"value": width}, "text": {"field": "label"}},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0.45},
                "encoding": {"x": x, "y": y, "color": colour, **shape},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "size": 240, "strokeWidth": 2.5, "filled": False},
                "encoding": {
                    "x": {**x, "aggregate": "mean"}, "y": {**y, "aggregate": "mean"}, "color": colour, **shape,
                },
            },
        ],
    }  # fmt: skip


def _conditions(series: Sequence[Series], kind: str) -> list[str]:
    """Return the conditions that models were judged under in one way; at least one, for anchors alone."""
    return list(dict.fromkeys(one.condition for one in series if not one.anchor and one.judged == kind)) or [""]


def _anchor_names(share: Mapping[str, Any], x: Mapping[str, Any], *, high: bool) -> dict[str, Any]:
    """Write the names of anchors where models are few: at the beginning of a high line, at the end of a low one."""
    mark = {"type": "text", "align": "left" if high else "right", "dy": 11 if high else -7, **_ANCHOR_TEXT}
    within = "datum.turn == 1 && datum.rate > 0.5" if high else "datum.turn > 1 && datum.rate <= 0.5"
    return {
        "transform": [{"filter": f"isValid(datum.names) && {within}"}],
        "mark": mark,
        "encoding": {"x": x, "y": {**share, "field": "rate"}, "text": {"field": "names"}},
    }


def _name_anchors(rows: Sequence[dict[str, Any]], turns: int) -> None:
    """Put the names of anchors whose lines begin or end at one place into one of the rows there."""
    places: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["anchor"] and row["turn"] in (1, turns):
            places.setdefault((row["panel"], row["metric"], row["turn"], row["rate"]), []).append(row)
    for together in places.values():
        together[0]["names"] = ", ".join(row["agent"] for row in together)


def _whole(last: int) -> dict[str, Any]:
    step = max(1, round(last / 8))
    return {"format": "d", "values": list(range(1, last + 1, step)), "grid": False}


def _rank(reason: str) -> int:
    return REASONS.index(reason) if reason in REASONS else len(REASONS)


def _word(reason: str) -> str:
    return {"ok": "right", "no_code": "no code"}.get(reason, reason.replace("_", " "))
