"""Every kind of finding: a kernel that trips it at the marked line, and its twin without the fault, which is clean."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgym.device.protocol import RunOptions
from ptxgym.verdict import Severity
from tests.device.emulator.hazards.harness import DEVICE, SCHEDULES, Kernels, launch, lines_of, plan_of

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
WITH_INPUT = {
    "early_cp_async", "double_buffer", "early_bulk", "refill", "asked_once", "copy_pending", "init_unfenced",
    "bytes_short",
}  # fmt: skip

BAD = [
    ("race_read", "smem.race", ERROR),
    ("race_write", "smem.race", ERROR),
    ("race_same_value", "smem.race", WARNING),
    ("race_later", "smem.race", ERROR),
    ("race_loop", "smem.race", ERROR),
    ("flag", "smem.race", WARNING),
    ("unwritten", "smem.uninitialised", WARNING),
    ("named", "smem.race", ERROR),
    ("early_cp_async", "async.read_early", ERROR),
    ("double_buffer", "async.overwrite", ERROR),
    ("early_bulk", "async.read_early", ERROR),
    ("unfenced", "proxy.missing_fence", ERROR),
    ("unfenced_sum", "proxy.missing_fence", ERROR),
    ("store_unfilled", "smem.race", ERROR),
    ("store_reuse", "async.overwrite", ERROR),
    ("store_unwritten", "smem.uninitialised", ERROR),
    ("store_pending", "bulk.pending_at_exit", WARNING),
    ("store_uncommitted", "bulk.not_committed", ERROR),
    ("copy_pending", "cp_async.pending_at_exit", NOTE),
    ("init_unseen", "mbarrier.init_not_visible", ERROR),
    ("init_unfenced", "mbarrier.init_not_visible", NOTE),
    ("bytes_left", "mbarrier.tx_left", ERROR),
    ("overwritten", "mbarrier.overwritten", ERROR),
    ("initialised_twice", "mbarrier.overwritten", ERROR),
]
CLEAN = [
    *dict.fromkeys(name for name, _, _ in BAD),
    "refill",
    "asked_once",
    "phase_skipped",
    "bytes_apart",
    "histogram",
    "fenced_by_reader",
    "token",
    "bytes_short",
]

BAD_WGMMA = [  # values of enum Fault
    (1, "wgmma.register_in_flight", ERROR),
    (2, "wgmma.missing_fence", WARNING),
    (3, "wgmma.not_committed", ERROR),
    (4, "proxy.missing_fence", ERROR),
    (5, "async.overwrite", ERROR),
    (6, "wgmma.pending_at_exit", WARNING),
    (7, "wgmma.uninitialised", WARNING),
    (8, "smem.race", ERROR),
]


@pytest.mark.parametrize("options", SCHEDULES[:3], ids=lambda o: o.schedule)
@pytest.mark.parametrize(("name", "code", "severity"), BAD, ids=[f"{name}-{code}" for name, code, _ in BAD])
def test_fault_is_named_at_its_line(
    kernels: Kernels, name: str, code: str, severity: Severity, options: RunOptions
) -> None:
    result = launch(kernels, kernels.mangled(name, "b0"), inputs=name in WITH_INPUT, options=options)
    found = [finding for finding in result.findings if finding.code == code]
    assert found, [f.code for f in result.findings]
    assert max(found, key=lambda f: [NOTE, WARNING, ERROR].index(f.severity)).severity == severity
    marked = kernels.marked(name, code)
    assert marked and marked & lines_of(found[0]), (marked, found[0])
    assert all(f.message and f.remedy and f.parties for f in found)
    assert all("0x" not in f.message or "shared 0x" in f.message for f in found)


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: f"{o.schedule}{o.seed}")
@pytest.mark.parametrize("name", CLEAN)
def test_twin_is_clean(kernels: Kernels, name: str, options: RunOptions) -> None:
    result = launch(kernels, kernels.mangled(name, "b1"), inputs=name in WITH_INPUT, options=options)
    assert [(f.code, f.message) for f in result.findings] == []


@pytest.mark.parametrize("options", SCHEDULES[:3], ids=lambda o: o.schedule)
@pytest.mark.parametrize(("fault", "code", "severity"), BAD_WGMMA)
def test_wgmma_fault_is_named_at_its_line(
    kernels: Kernels, fault: int, code: str, severity: Severity, options: RunOptions
) -> None:
    result = launch(kernels, kernels.mangled("multiply", f"i{fault}"), block=128, options=options)
    found = [finding for finding in result.findings if finding.code == code]
    assert found, [f.code for f in result.findings]
    assert found[0].severity == severity
    assert kernels.marked("multiply", code) & lines_of(found[0])


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: f"{o.schedule}{o.seed}")
@pytest.mark.parametrize(("name", "instance", "block"), [("multiply", "i8", 128), ("store_unfilled", "b0", 64)])
def test_a_barrier_that_is_missing_before_an_asynchronous_read(
    kernels: Kernels, name: str, instance: str, block: int, options: RunOptions
) -> None:
    """Whoever comes first: bytes that are filled late are no buffer that is reused too early."""
    first, *others = launch(kernels, kernels.mangled(name, instance), block=block, options=options).findings
    assert (first.code, first.severity) == ("smem.race", ERROR)
    assert "barrier, before this instruction" in (first.remedy or "")
    assert not [finding for finding in others if finding.code == "async.overwrite"]


@pytest.mark.parametrize("options", SCHEDULES[:3], ids=lambda o: o.schedule)
@pytest.mark.parametrize(
    ("name", "fault", "code", "severity"),
    [
        ("store_ahead", 0, "bulk.not_committed", NOTE),
        ("store_ahead", 1, "bulk.not_committed", ERROR),
        ("store_ahead", 2, "async.overwrite", ERROR),
        ("multiply", 9, "wgmma.not_committed", NOTE),
    ],
)
def test_a_wait_while_the_next_operation_is_in_no_group_yet(
    kernels: Kernels, name: str, fault: int, code: str, severity: Severity, options: RunOptions
) -> None:
    """Legal: the wait is for those that were committed. What it leaves out is an error where it is relied on."""
    result = launch(kernels, kernels.mangled(name, f"i{fault}"), block=128, options=options)
    (first, *others) = result.findings
    assert (first.code, first.severity) == (code, severity)
    assert kernels.marked(name, code) & lines_of(first)
    assert {f.severity for f in others} <= {NOTE}


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: f"{o.schedule}{o.seed}")
def test_wgmma_in_order_is_clean(kernels: Kernels, options: RunOptions) -> None:
    result = launch(kernels, kernels.mangled("multiply", "i0"), block=128, options=options)
    assert result.findings == ()


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: f"{o.schedule}{o.seed}")
def test_too_few_bytes_announced(kernels: Kernels, options: RunOptions) -> None:
    """Whether the phase completes before or after the second copy is issued depends on the schedule."""
    result = launch(kernels, kernels.mangled("bytes_short", "b0"), inputs=True, options=options)
    errors = [f for f in result.findings if f.severity == ERROR]
    assert errors and errors[0].code in ("mbarrier.tx_overflow", "async.read_early")
    assert kernels.marked("bytes_short", errors[0].code) & lines_of(errors[0])


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: f"{o.schedule}{o.seed}")
@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize(("instance", "errors"), [("b0", {"smem.race"}), ("b1", set())])
def test_no_number_of_warnings_keeps_an_error_out(
    kernels: Kernels, instance: str, errors: set[str], ctas: int, options: RunOptions
) -> None:
    """250 places that read what nothing has written, of 200 that are kept; the race comes after them."""
    plan = plan_of(kernels.mangled("flooded", instance), {"out": 8192}, 64, build_key=kernels.build.key)
    (one,) = plan.launches
    plan = plan.model_copy(update={"operations": (one.model_copy(update={"grid": (ctas, 1, 1)}),)})
    result = DEVICE.run(kernels.build, plan, {"out": np.zeros(8192, np.uint8)}, options)
    assert {f.code for f in result.findings if f.severity == ERROR} == errors
    (warned,) = (f for f in result.findings if f.severity == WARNING)
    assert (warned.code, warned.count >= 198) == ("smem.uninitialised", True)


@pytest.mark.parametrize("name", ["race_read", "double_buffer", "unfenced", "store_reuse"])
def test_every_schedule_accuses_the_same_pair(kernels: Kernels, name: str) -> None:
    """Which party comes second, and so the code, depends on who ran first; the pair of lines does not."""

    def pairs(options: RunOptions) -> set[frozenset[int | None]]:
        result = launch(kernels, kernels.mangled(name, "b0"), inputs=name in WITH_INPUT, options=options)
        return {frozenset(lines_of(f)) for f in result.findings if f.severity == ERROR}

    fair, *others = (pairs(options) for options in SCHEDULES)
    assert fair
    assert all(other == fair for other in others)


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: f"{o.schedule}{o.seed}")
def test_refill_before_everyone_has_read(kernels: Kernels, options: RunOptions) -> None:
    """Seen as an overwrite where the copy is issued after the read, as a read of bytes in flight where before."""
    result = launch(kernels, kernels.mangled("refill", "b0"), inputs=True, options=options)
    found = [f for f in result.findings if f.code in ("async.overwrite", "async.read_early")]
    assert found and found[0].severity == ERROR
    assert kernels.marked("refill", "async.overwrite") & lines_of(found[0])


def test_a_wait_that_is_not_asked_again(kernels: Kernels) -> None:
    """A random schedule lets some waits run into their time limit; the twin, which is clean, asks again."""
    random = [RunOptions(schedule="random", seed=seed) for seed in range(6)]
    runs = [launch(kernels, kernels.mangled("asked_once", "b0"), inputs=True, options=options) for options in random]
    found = [f for run in runs for f in run.findings if f.severity == ERROR]
    assert "async.read_early" in {f.code for f in found}
    assert all(kernels.marked("asked_once", "async.read_early") & lines_of(f) for f in found)
    assert any(not run.findings for run in runs)


def test_barrier_that_can_be_two_phases_ahead(kernels: Kernels) -> None:
    """A warp that keeps up is warned; one that falls behind by two phases waits for ever, and is told why."""
    name, seen = kernels.mangled("phase_skipped", "b0"), set()
    for options in (*SCHEDULES, *(RunOptions(schedule="random", seed=s) for s in range(3, 12))):
        result = launch(kernels, name, options=options)
        found = [f for f in result.findings if f.code in ("mbarrier.phase_skipped", "emulator.deadlock")]
        assert found, result.findings
        assert kernels.marked("phase_skipped", "mbarrier.phase_skipped") & lines_of(found[0])
        seen |= {f.code for f in found}
    assert "mbarrier.phase_skipped" in seen
