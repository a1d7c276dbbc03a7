"""Flags in shared memory: what they hand over, however often and in however many lanes, and what they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxgym.device.protocol import Execution, RunOptions
from ptxgym.verdict import Severity
from tests.device.emulator.hazards.harness import SCHEDULES, Kernels, compile_ptx, launch, lines_of

ERROR, WARNING = Severity.ERROR, Severity.WARNING
RIGHT = [  # kernel, instance, threads, first words of the output
    ("lock", 0, 64, [102]),
    ("lock", 1, 64, [102]),
    ("twice", 0, 64, [7]),
    ("twice", 1, 64, [7]),
    ("meet", 0, 64, [32, 33]),
    ("each_waits", 0, 128, [None, 10, 20, 30]),
    ("each_waits", 1, 128, [None, 10, 20, 30]),
    ("each_waits", 2, 128, [None, 10, 20, 30]),
    ("one_tells_each", 0, 128, [None, 5, 5, 5]),
]
WRONG = [
    ("lock", 2, 64, WARNING),
    ("twice", 2, 64, ERROR),
    ("meet", 1, 64, ERROR),
    ("each_waits", 3, 128, ERROR),
    ("one_tells_each", 1, 128, WARNING),
]


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return compile_ptx(Path(__file__).with_name("flags.cu"), tmp_path_factory.mktemp("flags"))


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: f"{o.schedule}{o.seed}")
@pytest.mark.parametrize(("name", "how", "block", "expected"), RIGHT)
def test_what_a_flag_hands_over_is_clean(
    flags: Kernels, name: str, how: int, block: int, expected: list[int | None], options: RunOptions
) -> None:
    result = launch(flags, flags.mangled(name, f"i{how}"), block=block, options=options)
    assert [(f.code, f.message) for f in result.findings] == []
    assert isinstance(result, Execution)
    words = result.buffers["out"].view("<u4").tolist()
    assert [word for word, known in zip(words, expected, strict=False) if known is not None] == [
        word for word in expected if word is not None
    ]


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: f"{o.schedule}{o.seed}")
@pytest.mark.parametrize(("name", "how", "block", "severity"), WRONG)
def test_what_it_does_not_is_named(
    flags: Kernels, name: str, how: int, block: int, severity: Severity, options: RunOptions
) -> None:
    found = [
        f
        for f in launch(flags, flags.mangled(name, f"i{how}"), block=block, options=options).findings
        if f.code == "smem.race"
    ]
    assert found and found[0].severity == severity
    assert flags.marked(name, "smem.race") & lines_of(found[0])
