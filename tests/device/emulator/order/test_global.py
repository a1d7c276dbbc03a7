"""What orders global memory between CTAs: right hand-overs are clean on every schedule, each fault is named."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Bytes, Execution, RunOptions
from ptxgym.plan.model import (
    Blob,
    Buffer,
    BufferRef,
    FunctionAttributes,
    Launch,
    LaunchPlan,
    Memset,
    PointerRef,
)
from ptxgym.verdict import Finding, Severity
from tests.device.emulator.hazards.harness import Kernels, lines_of

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
RANK = (NOTE, WARNING, ERROR)
DEVICE = EmulatorDevice()
GRID, BLOCK = 4, 64
SCHEDULES = (
    RunOptions(), RunOptions(schedule="lazy"), *(RunOptions(schedule="random", seed=seed) for seed in range(4)),
)  # fmt: skip
BYTES = 4 * GRID * BLOCK


def launch(
    kernels: Kernels,
    kernel: str,
    options: RunOptions = SCHEDULES[0],
    *,
    cluster: tuple[int, int, int] | None = None,
    grid: int = GRID,
    size: int = BYTES,
) -> Execution:
    """Run a kernel whose parameters are pointers to `size` bytes of zeros."""
    name = mangled(kernels, kernel)
    names = [f"buffer{i}" for i in range(kernels.ptx.split(f".entry {name}(")[1].split(")")[0].count(".param"))]
    names[0] = "out"
    plan = LaunchPlan(
        build_key=kernels.build.key,
        device_profile="h100",
        axes={},
        buffers=tuple(Buffer(name=n, role="output" if n == "out" else "workspace", size_bytes=size) for n in names),
        functions=(FunctionAttributes(kernel=name, max_dynamic_smem_bytes=0),),
        operations=(
            *(Memset(target=BufferRef(buffer=n), value=0, width_bytes=1, count=size) for n in names),
            Launch(
                kernel=name, grid=(grid, 1, 1), block=(BLOCK, 1, 1), dynamic_smem_bytes=0, cluster=cluster,
                params=tuple(Blob(data="00" * 8, refs=(PointerRef(at=0, target=BufferRef(buffer=n)),)) for n in names),
            ),
        ),
        isolation="full",
        recorder_revision=1,
    )  # fmt: skip
    data: dict[str, Bytes] = {"out": np.zeros(size, np.uint8)}
    result = DEVICE.run(kernels.build, plan, data, options)
    assert isinstance(result, Execution), (result.code, result.message)
    return result


def mangled(kernels: Kernels, kernel: str) -> str:
    """`last_one<1>`, `pieces<4,1,0>` or `guide`."""
    name, _, arguments = kernel.partition("<")
    if arguments:
        return kernels.mangled(name, "i" + arguments[:-1].replace(",", "ELi"))
    (found,) = {
        word
        for word in re.findall(r"\.entry (\w+)\(", kernels.ptx)
        if word.startswith((f"_Z{len(name)}{name}P", f"_Z{len(name)}{name}V"))
    }
    return found


def races(result: Execution) -> list[Finding]:
    return [finding for finding in result.findings if finding.code == "global.race"]


def worst(result: Execution) -> Severity:
    return max((finding.severity for finding in races(result)), key=RANK.index)


RIGHT = (
    "last_one<0>", "in_turn<0>", "all_meet<0>", "overlap<0>", "neighbour<0>", "counts<0>", "copied<0>", "halves",
    "passed_on<0>", "stored_by_copy<0>", "stored_by_copy<4>", "non_coherent<0>", "non_coherent<3>",
    "loaded_by_copy<0>", "loaded_by_copy<2>", "loaded_by_copy<4>",
)  # fmt: skip


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: f"{o.schedule}{o.seed}")
@pytest.mark.parametrize("kernel", RIGHT)
def test_what_is_ordered_is_clean(kernels: Kernels, kernel: str, options: RunOptions) -> None:
    assert [(f.code, f.message) for f in launch(kernels, kernel, options).findings] == []


FAULTS = [
    ("last_one", 1, WARNING),  # no fence before the counter
    ("last_one", 2, WARNING),  # a fence that reaches the own CTA only
    ("last_one", 3, WARNING),  # no fence after it
    ("last_one", 4, ERROR),  # the first one adds up, not the last
    ("last_one", 5, ERROR),  # other warps' parts are not handed over
    ("in_turn", 1, WARNING),  # relaxed load
    ("in_turn", 2, WARNING),  # relaxed store
    ("in_turn", 3, ERROR),  # no wait
    ("in_turn", 4, ERROR),  # one warp waits, the other goes on
    ("in_turn", 5, ERROR),  # one warp is done, the other not yet
    ("all_meet", 1, WARNING),
    ("all_meet", 2, ERROR),
    ("overlap", 1, ERROR),
    ("overlap", 2, NOTE),
    ("neighbour", 1, ERROR),
    ("counts", 1, WARNING),
    ("copied", 1, ERROR),
    ("passed_on", 1, WARNING),
    ("stored_by_copy", 1, WARNING),  # a wait for the source of the copy alone
    ("stored_by_copy", 2, WARNING),  # no wait before the flag
    ("stored_by_copy", 3, ERROR),  # no flag
    ("stored_by_copy", 5, WARNING),  # the same of a sum
]


@pytest.mark.parametrize("options", SCHEDULES[1:4], ids=lambda o: f"{o.schedule}{o.seed}")
@pytest.mark.parametrize(("name", "fault", "severity"), FAULTS)
def test_fault_is_named_at_its_line(
    kernels: Kernels, name: str, fault: int, severity: Severity, options: RunOptions
) -> None:
    result = launch(kernels, f"{name}<{fault}>", options)
    assert worst(result) == severity, [(f.severity, f.message) for f in result.findings]
    first = next(f for f in races(result) if f.severity == severity)
    assert kernels.marked(name, str(fault)) & lines_of(first), first
    assert first.remedy and len(first.parties) == 2
    assert all("CTA" in party.who for party in first.parties)


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: f"{o.schedule}{o.seed}")
@pytest.mark.parametrize("kernel", ["guide", "plain_flag"])
def test_practice_is_a_note_at_most(kernels: Kernels, kernel: str, options: RunOptions) -> None:
    result = launch(kernels, kernel, options)
    allowed = (NOTE,) if kernel == "guide" else (NOTE, WARNING)
    assert {f.severity for f in result.findings} <= set(allowed), [(f.severity, f.message) for f in result.findings]


def test_a_cluster_s_scope_reaches_the_cluster_alone(kernels: Kernels) -> None:
    for options in SCHEDULES:
        assert races(launch(kernels, "in_cluster", options, cluster=(2, 1, 1))) == []
    alone = races(launch(kernels, "in_cluster"))
    assert alone and all(f.severity is WARNING for f in alone)
    assert any("scope" in (f.remedy or "") for f in alone)


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: f"{o.schedule}{o.seed}")
@pytest.mark.parametrize(("how", "severity"), [(1, WARNING), (2, NOTE)])
def test_what_the_launch_writes_is_not_read_only(
    kernels: Kernels, how: int, severity: Severity, options: RunOptions
) -> None:
    (found,) = launch(kernels, f"non_coherent<{how}>", options).findings
    assert (found.code, found.severity) == ("global.not_read_only", severity)
    assert lines_of(found) == kernels.marked("non_coherent", str(how))


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: f"{o.schedule}{o.seed}")
@pytest.mark.parametrize("how", [1, 3])
def test_the_async_proxy_reads_what_was_fenced_for_it(kernels: Kernels, how: int, options: RunOptions) -> None:
    (found,) = launch(kernels, f"loaded_by_copy<{how}>", options).findings
    assert (found.code, found.severity) == ("proxy.missing_fence", WARNING)
    assert lines_of(found) == kernels.marked("loaded_by_copy", str(how))


@pytest.mark.parametrize("kernel", ["overlap<1>", "neighbour<1>", "last_one<1>", "in_turn<3>"])
def test_findings_do_not_depend_on_host_threads(kernels: Kernels, kernel: str) -> None:
    def told(threads: int) -> list[tuple[str, str, int | None]]:
        result = launch(kernels, kernel, RunOptions(threads=threads))
        return [(f.code, f.message, f.line) for f in result.findings]

    assert told(1) == told(2) != []
