"""How charts look: Vega-Lite's configuration, colours, and drawing to SVG when the page is made.

So a page needs no library and no network. Colours are the page's own variables: charts follow its light and dark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptxgym.bench.metrics import Trajectory
from ptxgym.report.extra import need
from ptxgym.report.text import visible

VEGA_LITE = "5.21"
SERIES_COLOURS = tuple(f"var(--series-{number})" for number in range(8))
ANCHOR_COLOUR = "var(--anchor)"
WIDTH = 720
"""Of a chart without panels, in pixels."""
_SIZE = re.compile(r'^(<svg[^>]*?) width="([\d.]+)" height="[\d.]+"')
_LARGEST = 1.15
"""How much wider than drawn a chart may be shown."""
_LEAST = 672
"""Pixels; to which a wide chart may shrink before it is scrolled."""
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
    "title": {"color": "var(--ink)", "fontSize": 12, "fontWeight": "normal", "offset": 10},
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """Trajectories of one agent under one arm, emulated or measured, as charts and legends name them."""

    agent: str
    condition: str
    """Run and arm, where a report has several; empty for an anchor, which stands beside all."""
    anchor: bool
    found: tuple[Trajectory, ...]
    """At least one; all emulated, or all measured."""

    @property
    def emulated(self) -> bool:
        """Whether its kernels were emulated."""
        return self.found[0].emulated

    @property
    def judged(self) -> str:
        """The same in a word."""
        return "emulated" if self.emulated else "measured"

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


def draw(spec: Mapping[str, Any]) -> str:
    """Return a specification as SVG that scales with the page, with all texts escaped."""
    svg: str = need("vl_convert").vegalite_to_svg({**spec, "config": _CONFIG}, vl_version=VEGA_LITE)
    return _SIZE.sub(_sized, svg, count=1)


def _sized(tag: re.Match[str]) -> str:
    """Return the beginning of a chart: as wide as the page within bounds, so that its letters stay legible."""
    width = float(tag[2])
    return f'{tag[1]} role="img" style="min-width:{min(width, _LEAST):.0f}px;max-width:{width * _LARGEST:.0f}px"'


def kinds(series: Sequence[Series]) -> tuple[str, ...]:
    """Return `emulated` and `measured` as far as they are there; where both are, charts have a panel for each."""
    return tuple(kind for kind in ("emulated", "measured") if any(one.judged == kind for one in series))


def colour_of_models(series: Sequence[Series]) -> dict[str, Any]:
    """Return the colour channel: one for each model, the same in every chart; anchors are no part of the legend."""
    models = [visible(agent) for agent in dict.fromkeys(one.agent for one in series if not one.anchor)]
    colours = [SERIES_COLOURS[number % len(SERIES_COLOURS)] for number in range(len(models))]
    return {"field": "agent", "type": "nominal", "scale": {"domain": models, "range": colours}}


def joined(*words: str) -> str:
    """Return labels side by side, without the empty ones, fit to be shown."""
    return visible(" · ".join(filter(None, words)))
