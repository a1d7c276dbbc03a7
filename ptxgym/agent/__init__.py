"""Agents: what answers a prompt with a kernel, turn by turn, and the loop that lets it play an episode."""

from __future__ import annotations

from ptxgym.agent.events import Answered, Event, Judged, Started, Text, Trouble
from ptxgym.agent.loop import opening_messages, run_episode
from ptxgym.agent.prompting import Prompting
from ptxgym.agent.protocol import (
    Agent,
    Checking,
    Identity,
    MissingSetting,
    ModelError,
    NoMoreAnswers,
    Reply,
    TurnContext,
)
from ptxgym.agent.registry import agent_names, load_agent

__all__ = [
    "Agent",
    "Answered",
    "Checking",
    "Event",
    "Identity",
    "Judged",
    "MissingSetting",
    "ModelError",
    "NoMoreAnswers",
    "Prompting",
    "Reply",
    "Started",
    "Text",
    "Trouble",
    "TurnContext",
    "agent_names",
    "load_agent",
    "opening_messages",
    "run_episode",
]
