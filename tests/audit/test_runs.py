"""What the emulated runs say of outputs, whichever way a variant stores them."""

from __future__ import annotations

import numpy as np

from ptxgym.audit.facts import Run
from ptxgym.audit.model import Outcome
from ptxgym.audit.runs import _written
from ptxgym.device.protocol import Execution
from ptxgym.judge import numbers
from ptxgym.variants import load_variant


def test_an_unwritten_element_is_indexed_as_it_is_stored() -> None:
    output, axes = load_variant("attn_fwd", "bshd").outputs[0], {"B": 1, "H": 2, "S": 128, "D": 128}
    assert output.shape == ("B", "S", "H", "D")
    data = numbers.poisoned(output, axes)
    words = data.view(np.uint16).reshape(output.sizes(axes))
    words[:, :100] = 0
    result = Execution(buffers={"O": data})
    run = Run(axes, "fair", result, {})
    found = _written(result, output, run, run.where)
    assert (found.outcome, found.item) == (Outcome.VIOLATED, "output.written")
    assert "O: 7,168 of 32,768 elements unwritten" in found.found and found.found.endswith("first O[0, 100, 0, 0]")
