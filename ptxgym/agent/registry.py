"""Agents by name: `agents/<name>/agent.toml` and the templates beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ptxgym import content
from ptxgym.agent.config import KINDS, AgentConfig, OpenAIConfig, SolutionConfig
from ptxgym.agent.prompting import Prompting
from ptxgym.agent.protocol import Agent
from ptxgym.errors import ContentError, UsageError


def agent_names() -> tuple[str, ...]:
    """Return the names of all agents, sorted."""
    return tuple(content.find("agents"))


def agent_summaries() -> dict[str, str]:
    """Return what each agent's file says of it, by name.

    Raises:
        ContentError: if a file is no TOML.
    """
    return {name: str(content.read_toml(path).get("summary", "")) for name, path in content.find("agents").items()}


def load_agent(name: str, **overrides: Any) -> Agent:
    """Make the agent `name` with some settings changed.

    Args:
        name: A folder of `agents/`.
        overrides: Settings of its `agent.toml`; tables are merged, and a dot names a setting within one:
            `load_agent("openai", model="m", **{"sampling.temperature": 0.6})`.

    Raises:
        UnknownNameError: if there is no such agent; suggests the nearest.
        ContentError: if its file or a template is malformed.
        UsageError: if an override is not acceptable, or a package that the agent needs is missing.
    """
    path = content.locate("agents", name)
    written = content.read_toml(path)
    kind = written.get("kind")
    if kind not in KINDS:
        raise ContentError(f"{path}: kind: must be {', '.join(map(repr, sorted(KINDS)))}, found {kind!r}")
    if not overrides:
        return _make(content.load(path, KINDS[kind], name=name), path.parent)
    merged = _merged(written, overrides)
    try:
        config = KINDS[kind].model_validate({**merged, "name": name})
    except ValidationError as error:
        problems = "; ".join(_problem(item, KINDS[kind]) for item in error.errors())
        raise UsageError(f"agent {name}: {problems}") from error
    return _make(config, path.parent)


def _make(config: AgentConfig, folder: Path) -> Agent:
    if isinstance(config, OpenAIConfig):
        from ptxgym.agent.chat import ChatAgent

        return ChatAgent(config, Prompting.of_folder(folder, config.context))
    if isinstance(config, SolutionConfig):
        from ptxgym.agent.solution import SolutionAgent

        return SolutionAgent(config)
    from ptxgym.agent.replay import ReplayAgent

    return ReplayAgent(config)


def _merged(written: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `written` with the overrides in it, dotted names and nested tables alike."""
    result = dict(written)
    for name, value in overrides.items():
        first, _, rest = name.partition(".")
        inner = {rest: value} if rest else value
        table = result.get(first)
        if isinstance(inner, Mapping):
            result[first] = _merged(table if isinstance(table, Mapping) else {}, inner)
        else:
            result[first] = inner
    return result


def _problem(item: Any, model: type[AgentConfig]) -> str:
    key = ".".join(map(str, item["loc"])) or "(all)"
    if item["type"] == "extra_forbidden" and len(item["loc"]) == 1:
        return content.unknown("setting", key, (name for name in model.model_fields if name not in ("name", "kind")))
    return f"{key}: {item['msg'].removeprefix('Value error, ')}, not {item['input']!r}"
