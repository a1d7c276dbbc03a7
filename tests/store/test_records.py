"""Lines of a run, as models."""

from __future__ import annotations

import pytest

from ptxgym.store.records import Usage


def test_usage_adds_up_and_an_unknown_cost_stays_unknown() -> None:
    first = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=20, reasoning_tokens=5, cost_usd=0.5)
    second = Usage(prompt_tokens=1, completion_tokens=2, cost_usd=0.25)
    total = first + second
    assert (total.prompt_tokens, total.cached_tokens, total.completion_tokens, total.reasoning_tokens) == (11, 4, 22, 5)
    assert total.cost_usd == pytest.approx(0.75)
    assert (first + Usage(prompt_tokens=1)).cost_usd is None
