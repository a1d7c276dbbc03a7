"""Completions as endpoints really send them: fields that the protocol requires may be missing."""

from __future__ import annotations

from types import SimpleNamespace

from ptxgym.agent.answer import Answer
from ptxgym.agent.config import Prices
from ptxgym.store.records import Usage


def test_counts_that_an_endpoint_leaves_out_are_zero() -> None:
    answer = Answer()
    said = SimpleNamespace(content="a kernel")
    assert list(answer.add(SimpleNamespace(choices=[SimpleNamespace(delta=said)]))) == ["a kernel"]
    assert answer.finish_reason == ""
    list(answer.add(SimpleNamespace(choices=[], usage=SimpleNamespace(completion_tokens=10))))
    assert answer.usage(Prices(prompt=1.0, completion=2.0)) == Usage(completion_tokens=10, cost_usd=2e-5)
