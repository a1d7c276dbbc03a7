"""Charts as Vega-Lite specifications, drawn to SVG when the page is made: a page needs no library and no network.

Colours are the page's own variables, so that charts follow its light and dark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptxgym.bench.metrics import Metric, Trajectory, failures_by_turn, rate
from ptxgym.report.extra import need
from ptxgym.report.text import visible

VEGA_LITE = "5.21"
SERIES_COLOURS = tuple(f"var(--series-{number})" for number in range(8))
ANCHOR_COLOUR = "var(--anchor)"
REASONS = (
    "ok", "wrong_output", "hazard", "hang", "runtime_fault", "budget", "launch_error", "plan_error", "not_emulated",
    "compile_error", "integrity", "rejected", "no_code", "truncated", "refused",
)  # fmt: skip
"""In the order in which they are stacked: what is right lies at the bottom, what never ran on top."""
_METRICS: tuple[tuple[Metric, str], ...] = (("correct", "right"), ("target", "right, on target instructions"))
_SIZE = re.compile(r'^(<svg[^>]*?) width="([\d.]+)" height="[\d.]+"')
_LARGEST = 1.15
"""How much wider than drawn a chart may be shown."""
_CONFIG: dict[str, Any] = {
    "background": None,
    "padding": 10,
    "font": "Arial, Helvetica, Liberation Sans, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)", "titleColor": "var(--muted)", "titleFontWeight": "normal", "labelFontSize": 11.5,
        "titleFontSize": 11.5, "gridColor": "var(--line)", "domainColor": "var(--line)", "tickColor": "var(--line)",
        "titlePadding": 8,
    },
    "legend": {
        "labelColor": "var(--ink)", "labelFontSize": 12, "title": None, "orient": "top", "symbolType": "circle",
        "symbolStrokeWidth": 0, "symbolOpacity": 1, "symbolSize": 80, "symbolBaseFillColor": "var(--muted)",
        "symbolBaseStrokeColor": "var(--muted)", "labelLimit": 260, "columns": 6, "columnPadding": 18,
    },
    "header": {"labelColor": "var(--ink)", "labelFontSize": 12, "title": None, "labelLimit": 260, "labelPadding": 8},
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """Trajectories of one agent under one arm, as charts and legends name them."""

    agent: str
    condition: str
    """Run and arm, where a report has several; empty for an anchor, which stands beside all."""
    anchor: bool
    found: tuple[Trajectory, ...]

    @property
    def label(self) -> str:
        """Agent and condition."""
        return " · ".join(filter(None, (self.agent, self.condition)))


@dataclass(frozen=True)
class Chart:
    """A drawn chart with what stands around it."""

    id: str
    title: str
    caption: str
    svg: str
    """Safe as it is: the library has escaped all texts in it."""


def charts(series: Sequence[Series], turns: int) -> tuple[Chart, ...]:
    """Return all charts that have something to show."""
    drawn = (progress(series, turns), failures(series), speeds(series, turns), cost(series))
    return tuple(chart for chart in drawn if chart is not None)


def progress(series: Sequence[Series], turns: int) -> Chart:
    """Draw which share of the trajectories is right, and right on target instructions, within 1, 2, 3 … turns."""
    conditions = list(dict.fromkeys(one.condition for one in series if not one.anchor)) or [""]
    models = list(dict.fromkeys(one.agent for one in series if not one.anchor))
    rows = [
        {
            "agent": visible(one.agent), "condition": visible(condition), "metric": title, "turn": turn,
            "at": turn if one.anchor else turn + 0.05 * (models.index(one.agent) - (len(models) - 1) / 2),
            "rate": found.value, "low": found.low, "high": found.high, "anchor": one.anchor,
        }
        for one in series
        for condition in (conditions if one.anchor else (one.condition,))
        for metric, title in _METRICS
        for turn in range(1, turns + 1)
        for found in (rate(one.found, turn, metric).interval,)
    ]  # fmt: skip
    x = {"field": "at", "type": "quantitative", "title": "within … turns", "axis": _whole(turns)}
    x["scale"] = {"domain": [0.8, max(turns, 2) + 0.2], "nice": False}
    share = {"type": "quantitative", "title": None, "axis": {"format": ".0%", "tickCount": 5}}
    share["scale"] = {"domain": [0, 1]}
    colour = _colour(series)
    row: dict[str, Any] = {"field": "condition", "sort": [visible(one) for one in conditions]}
    row["header"] = {"labels": conditions != [""], "labelLimit": 190}
    spec = {
        "data": {"values": rows},
        "facet": {"column": {"field": "metric", "sort": [title for _, title in _METRICS]}, "row": row},
        "spec": {
            "width": 370,
            "height": 190,
            "layer": [
                {
                    "transform": [{"filter": "!datum.anchor"}],
                    "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.45},
                    "encoding": {"x": x, "y": {**share, "field": "low"}, "y2": {"field": "high"}, "color": colour},
                },
                {
                    "mark": {"type": "line", "strokeWidth": 2},
                    "encoding": {
                        "x": x,
                        "y": {**share, "field": "rate"},
                        "color": colour,
                        "strokeDash": {"condition": {"test": "datum.anchor", "value": [3, 4]}, "value": [1, 0]},
                    },
                },
                {
                    "transform": [{"filter": "!datum.anchor"}],
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
        "intervals (Wilson) over trajectories. Dotted: anchors.",
        draw(spec),
    )


def failures(series: Sequence[Series]) -> Chart | None:
    """Draw what the kernels of every turn came to."""
    rows = [
        {"series": visible(one.label), "turn": turn, "reason": _word(reason), "kernels": count, "order": _rank(reason)}
        for one in series
        if not one.anchor
        for turn, mix in failures_by_turn(one.found).items()
        for reason, count in mix.items()
    ]
    if not rows:
        return None
    known = sorted({(int(str(row["order"])), str(row["reason"])) for row in rows})
    labels = [visible(one.label) for one in series if not one.anchor]
    columns = len(labels) if len(labels) < 4 else next((count for count in (4, 3) if len(labels) % count == 0), 3)
    spec = {
        "data": {"values": rows},
        "facet": {"field": "series", "sort": labels},
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
        "What the kernels of each turn came to. Trajectories that have stopped are no longer in a bar.",
        draw(spec),
    )


def speeds(series: Sequence[Series], turns: int) -> Chart | None:
    """Draw the best measured speed-up of every trajectory; None where nothing was measured."""
    rows = [
        {"series": visible(one.label), "agent": visible(one.agent), "speedup": fastest, "task": visible(each.task)}
        for one in series
        for each in one.found
        if (fastest := each.fastest(turns)) > 0
    ]
    if not rows:
        return None
    labels = [visible(one.label) for one in series]
    x = {
        "field": "speedup", "type": "quantitative", "title": "speed-up over the best vendor library (log scale)",
        "scale": {"type": "log", "nice": False, "padding": 16},
        "axis": {"values": [0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 4], "format": "~g"},
    }  # fmt: skip
    y = {"field": "series", "type": "nominal", "title": None, "sort": labels, "axis": {"grid": True, "labelLimit": 240}}
    spec = {
        "width": 720,
        "height": {"step": 34},
        "data": {"values": rows},
        "layer": [
            {
                "mark": {"type": "rule", "strokeDash": [3, 4], "color": ANCHOR_COLOUR},
                "encoding": {"x": {"datum": 1.0, "type": "quantitative"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 0.55},
                "encoding": {"x": x, "y": y, "color": {**_colour(series), "legend": None}},
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
    priced = all(each.cost_usd is not None for one in models for each in one.found)
    rows = [
        {
            "agent": visible(one.agent), "condition": visible(one.condition),
            "cost": each.cost_usd if priced else each.tokens,
            "score": max(outcome.score for outcome in each.outcomes), "task": visible(each.task),
        }
        for one in models
        for each in one.found
    ]  # fmt: skip
    if not rows:
        return None
    largest = max(float(str(row["cost"])) for row in rows)
    anchors = [
        {
            "label": visible(one.label),
            "score": sum(max(o.score for o in each.outcomes) for each in one.found) / len(one.found),
        }
        for one in series
        if one.anchor
    ]
    unit = "US dollars" if priced else "tokens"
    x = {
        "field": "cost",
        "type": "quantitative",
        "title": f"{unit} of a trajectory",
        "axis": {"format": "~s", "tickCount": 6},
    }
    if not largest:
        x["scale"] = {"domain": [0, 1]}
    if priced:
        x["axis"] = {"format": "~g", "tickCount": 6}
    y = {"field": "score", "type": "quantitative", "title": "best score", "scale": {"domain": [0, 1]}}
    conditions = list(dict.fromkeys(visible(one.condition) for one in models))
    shape = {"shape": {"field": "condition", "sort": conditions}} if len(conditions) > 1 else {}
    shared = {"y": {**y, "title": None}}
    spec = {
        "width": 720,
        "height": 260,
        "layer": [
            {
                "data": {"values": anchors},
                "mark": {"type": "rule", "strokeDash": [3, 4], "color": ANCHOR_COLOUR},
                "encoding": shared,
            },
            {
                "data": {"values": anchors},
                "mark": {
                    "type": "text", "align": "right", "dy": -6, "dx": -4, "fontSize": 11, "color": "var(--muted)",
                },
                "encoding": {**shared, "x": {"value": 720}, "text": {"field": "label"}},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0.45},
                "encoding": {"x": x, "y": y, "color": _colour(models), **shape},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "size": 240, "strokeWidth": 2.5, "filled": False},
                "encoding": {
                    "x": {**x, "aggregate": "mean"}, "y": {**y, "aggregate": "mean"}, "color": _colour(models), **shape,
                },
            },
        ],
    }  # fmt: skip
    return Chart(
        "cost",
        "Cost against score",
        f"Small: a trajectory. Large: the mean of an agent. {'' if priced else 'In tokens: not every price is known. '}"
        "Dotted: mean score of the anchors. The emulator gives at most 0.5; the half above is measured speed.",
        draw(spec),
    )


def draw(spec: Mapping[str, Any]) -> str:
    """Return a specification as SVG that scales with the page, with all texts escaped."""
    svg: str = need("vl_convert").vegalite_to_svg({**spec, "config": _CONFIG}, vl_version=VEGA_LITE)
    return _SIZE.sub(lambda m: f'{m[1]} role="img" style="max-width:{float(m[2]) * _LARGEST:.0f}px"', svg, count=1)


def _colour(series: Sequence[Series]) -> dict[str, Any]:
    anchors = dict.fromkeys(visible(one.agent) for one in series if one.anchor)
    models = dict.fromkeys(visible(one.agent) for one in series if not one.anchor)
    colours = [SERIES_COLOURS[number % len(SERIES_COLOURS)] for number in range(len(models))]
    scale = {"domain": [*models, *anchors], "range": [*colours, *[ANCHOR_COLOUR] * len(anchors)]}
    return {"field": "agent", "type": "nominal", "scale": scale}


def _whole(last: int) -> dict[str, Any]:
    step = max(1, round(last / 8))
    return {"format": "d", "values": list(range(1, last + 1, step)), "grid": False}


def _rank(reason: str) -> int:
    return REASONS.index(reason) if reason in REASONS else len(REASONS)


def _word(reason: str) -> str:
    return {"ok": "right", "no_code": "no code"}.get(reason, reason.replace("_", " "))
