"""The OpenAPI document, from the models that travel, and a page that shows it without a network."""

from __future__ import annotations

import functools
import html
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import ptxgym
from ptxgym.cluster.protocol import ServiceStatus
from ptxgym.serve.wire import EVALUATIONS, MAX_WAIT_S, SERVICE, About, Answer, Asked, Problem

_PROBLEMS = {
    "400": "The body is no evaluation.",
    "401": "No token, or a wrong one.",
    "404": "No evaluation is known under the key: ask for it again.",
    "413": "The body is too large.",
    "422": "Task, variant, architecture or workload cannot be served here.",
    "500": "A fault of the service.",
    "502": "The machine failed as often as it is tried.",
    "503": "No room, starting or shutting down: ask again after Retry-After seconds.",
    "504": "No verdict by the deadline.",
}


_HEAD = """<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>
:root{color-scheme:light dark} body{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}
td{padding:.1rem 1rem .1rem 0;vertical-align:top} pre{overflow:auto;background:#8881;padding:.5rem}
</style>"""


@functools.cache
def document() -> dict[str, Any]:
    """Return the document, OpenAPI 3.1."""
    models: list[tuple[type[BaseModel], Any]] = [(Asked, "validation")]
    models += [(model, "serialization") for model in (Answer, About, Problem, ServiceStatus)]
    _, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")
    key = _parameter("key", "path", {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "Of the answer to POST.")
    wait = _parameter(
        "wait_s",
        "query",
        {"type": "number", "minimum": 0, "maximum": MAX_WAIT_S, "default": 0},
        "How long to hold the request open for the verdict.",
    )
    asker = _parameter("asker", "query", {"type": "string"}, "As in the request that was sent.")
    got: dict[str, tuple[str, str | None]] = {
        "200": ("The verdict.", "Answer"),
        "202": ("Accepted, and in work: wait with GET.", "Answer"),
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ptxgym serve",
            "version": ptxgym.__version__,
            "description": "Kernel texts in, verdicts out. Equal texts under equal conditions are evaluated once; to "
            "ask again, after whatever happened, costs nothing.",
        },
        "security": [{"token": []}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas.get("$defs", {}),
        },
        "paths": {
            EVALUATIONS: {
                "post": _operation(
                    "Ask for an evaluation", got, "400 401 413 422 500 502 503 504", [wait], body="Asked"
                )
            },
            EVALUATIONS + "/{key}": {
                "get": _operation("Wait for a verdict", got, "401 404 422 500 502 503 504", [key, wait]),
                "delete": _operation(
                    "Wait no longer; what nobody waits for is dropped", {"204": ("Let go.", None)}, "401 404 503",
                    [key, asker],
                ),
            },
            SERVICE: {"get": _operation("What the service is", {"200": ("It.", "About")}, "401 503", [])},
            f"{SERVICE}/status": {
                "get": _operation(
                    "Queues, workers and counters", {"200": ("Now.", "ServiceStatus")}, "401 503", []
                )
            },
        },
    }  # fmt: skip


@functools.cache
def page() -> str:
    """Return the document as HTML."""
    parts = []
    for path, operations in document()["paths"].items():
        for method, told in operations.items():
            rows = "".join(
                f"<tr><td>{status}</td><td>{html.escape(answer['description'])}</td></tr>"
                for status, answer in told["responses"].items()
            )
            takes = "".join(
                f"<li><code>{one['name']}</code> ({one['in']}): {html.escape(one['description'])}</li>"
                for one in told["parameters"]
            )
            parts.append(
                f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{html.escape(told['summary'])}.</p>"
                f"<ul>{takes}</ul><table>{rows}</table>"
            )
    for name, schema in document()["components"]["schemas"].items():
        shown = html.escape(json.dumps(schema, indent=2, ensure_ascii=False))
        parts.append(f"<details id='{name}'><summary><code>{name}</code></summary><pre>{shown}</pre></details>")
    about = document()["info"]
    title, version = about["title"], html.escape(about["version"])
    return (
        f"{_HEAD}<title>{title}</title><h1>{title} {version}</h1><p>{html.escape(about['description'])}</p>"
        f"<p><a href='openapi.json'>openapi.json</a></p>{''.join(parts)}"
    )


def _parameter(name: str, place: str, schema: dict[str, Any], what: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema, "description": what}


def _operation(
    summary: str,
    good: Mapping[str, tuple[str, str | None]],
    problems: str,
    parameters: list[dict[str, Any]],
    *,
    body: str | None = None,
) -> dict[str, Any]:
    answers = {**good} | {status: (_PROBLEMS[status], "Problem") for status in problems.split()}
    told: dict[str, Any] = {
        "summary": summary,
        "parameters": parameters,
        "responses": {
            status: {"description": what} | ({} if model is None else {"content": _json(model)})
            for status, (what, model) in answers.items()
        },
    }
    return told if body is None else told | {"requestBody": {"required": True, "content": _json(body)}}


def _json(model: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model}"}}}
