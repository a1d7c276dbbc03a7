"""SASS of Blackwell against the PTX that it came from: on the oracles' own cubins, emulated, since no GPU was there."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from ptxgym.build import build, disassemble
from ptxgym.build.entry import SUBMISSION_FILE
from ptxgym.build.model import Build
from ptxgym.content import find
from ptxgym.device.cuda.counterparts import completed
from ptxgym.device.cuda.listing import Place, read_listing, read_texts
from ptxgym.device.cuda.sass import Sass, unknown_opcodes
from ptxgym.device.emulator.decode import DecodedModule
from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Execution, InstructionCount
from ptxgym.judge.conditions import Case, buffers
from ptxgym.plan import Argument, LaunchPlan, device_profile, record
from ptxgym.task import Task, load_arch, load_task, oracle

PAIRS = {
    r"tcgen05\.mma\.cta_group::[12]\.kind::f16": ("UTCHMMA",),
    r"tcgen05\.commit": ("UTCBAR",),
    r"tcgen05\.cp": ("UTCCP",),
    r"tcgen05\.shift": ("UTCSHIFT",),
    r"tcgen05\.ld": ("LDTM",),
    r"tcgen05\.st": ("STTM",),
    r"tcgen05\.wait::st": ("FENCE.VIEW.ASYNC.T",),
    r"tcgen05\.(wait::ld|fence)": (),  # the scoreboard waits; order of the code alone
    r"tcgen05\.alloc": ("UTCATOMSWS.FIND_AND_SET", "UTCATOMSWS.FIND_AND_SET"),  # a try, and a loop
    r"tcgen05\.dealloc": ("UTCATOMSWS.AND",),
    r"tcgen05\.relinquish": ("UVIRTCOUNT.DEALLOC",),
    r"cp\.async\.bulk\.tensor\.\dd\.shared": ("UTMALDG",),
    r"cp\.async\.bulk\.tensor\.\dd\.global": ("UTMASTG",),
    r"cp\.reduce\.async\.bulk\.tensor": ("UTMAREDG",),
    r"cp\.async\.bulk\.(shared|global)": ("UBLKCP",),
}
"""PTX → the SASS that ptxas 13.0 makes of it."""
SASS = re.compile("|".join(rf"{re.escape(name)}\b" for pair in PAIRS.values() for name in pair))
EXACT = re.compile(r"UTC\wMMA|UTMA|UBLKCP")
"""At exactly its line. Of two loads, stores or commits that ptxas issues together, its line table may give the second
the line of the first."""
TASKS = tuple(name for name in find("tasks") if any(one.oracle for one in load_task(name).solutions.get("b200", ())))


@cache
def built(name: str) -> Build:
    task = load_task(name)
    done = build(
        task.source(oracle(task, "b200")), declaration=task.signature.declaration(), arch=load_arch("b200").code
    )
    assert isinstance(done, Build), done
    return done


def counterparts(form: str) -> tuple[str, ...]:
    return next((sass for ptx, sass in PAIRS.items() if re.match(ptx, form)), ())


@cache
def sass_of(name: str) -> tuple[tuple[str, Place, str], ...]:
    """Kernel, place and text of every instruction that some PTX in the table becomes, in the order of the code."""
    text = disassemble(built(name)).read_text()
    places = read_listing(text, built(name).ptx.read_text())
    return tuple(
        (kernel, places[kernel][offset], Sass.parse(instruction).opcode)
        for kernel, found in read_texts(text).items()
        for offset, instruction in sorted(found.items())
        if SASS.match(Sass.parse(instruction).opcode)
    )


@pytest.mark.parametrize("name", TASKS)
def test_every_instruction_of_the_tensor_core_has_its_sass_at_its_line(name: str) -> None:
    ptx: Counter[tuple[str, int, str]] = Counter()
    for kernel in built(name).kernels:
        module = DecodedModule.parse(built(name).ptx.read_text(), SUBMISSION_FILE)
        decoded = module.kernel(kernel.name)
        for form, line in zip(decoded.forms, decoded.lines.tolist(), strict=True):
            assert not form.startswith("tcgen05.") or any(re.match(known, form) for known in PAIRS), form
            ptx.update((kernel.name, line, sass) for sass in counterparts(form))
    sass = Counter((kernel, at.line, SASS.match(opcode)[0]) for kernel, at, opcode in sass_of(name))  # type: ignore[index]

    def of(counter: Counter[tuple[str, int, str]], exact: bool) -> Counter[tuple[str, int, str]]:
        return Counter({key: number for key, number in counter.items() if bool(EXACT.match(key[2])) is exact})

    assert of(sass, exact=True) == of(ptx, exact=True)
    assert sum(of(ptx, exact=True).values()) >= 12
    assert without_lines(sass) == without_lines(ptx)
    assert sass.keys() <= ptx.keys()


def without_lines(counter: Counter[tuple[str, int, str]]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for (kernel, _, opcode), number in counter.items():
        found[kernel, opcode] += number
    return found


@pytest.mark.parametrize("name", TASKS)
def test_every_opcode_of_an_oracle_is_known(name: str) -> None:
    assert unknown_opcodes(disassemble(built(name)).read_text()) == ()


def executed(task: Task, name: str) -> tuple[InstructionCount, ...]:
    axes = task.workload("emulation").axes
    sizes = task.sizes_bytes(axes)
    arguments = [Argument(tensor.name, "input", sizes[tensor.name]) for tensor in task.inputs]
    arguments += [Argument(tensor.name, "output", sizes[tensor.name]) for tensor in task.outputs]
    plan = record(built(name), arguments, axes, device_profile("b200"))
    assert isinstance(plan, LaunchPlan), plan
    done = EmulatorDevice().run(built(name), plan, buffers(task, Case("test/normal", axes, "normal", 1, False)))
    assert isinstance(done, Execution), done
    return done.counts


@pytest.mark.parametrize("name", TASKS)
def test_executions_of_sass_get_the_operators_multiply_adds(name: str) -> None:
    """As often as the emulator executed each PTX instruction, its SASS is said to have been executed by a profiler."""
    task = load_task(name)
    emulated = executed(task, name)
    issues: dict[tuple[str, int | None], list[int]] = {}
    for count in emulated:
        if count.form.startswith("tcgen05.mma"):
            issues.setdefault((count.kernel, count.line), []).append(count.thread)
    sass = []
    for kernel, at, opcode in sass_of(name):
        if opcode.startswith("UTCHMMA") and issues.get((kernel, at.line)):
            times = issues[kernel, at.line].pop(0)
            sass.append(InstructionCount(kernel, opcode, "tcgen05", at.line, times, times, 0, at.site))
    assert not any(issues.values())
    counts, notes = completed(sass, emulated)
    assert notes == ("the shapes of UTC*MMA instructions, which only the emulator knows: emulated",)
    assert sum(count.multiply_adds for count in counts) >= task.required_multiply_adds(task.workload("emulation").axes)
    assert sum(c.multiply_adds for c in counts) == sum(c.multiply_adds for c in emulated if c.family == "tcgen05")


# ---- the join alone


def ptx(line: int, multiply_adds: int, thread: int = 4, kernel: str = "k") -> InstructionCount:
    form = "tcgen05.mma.cta_group::1.kind::f16"
    return InstructionCount(kernel, form, "tcgen05", line, thread, thread, multiply_adds, line)


def sass(line: int, warp: int, kernel: str = "k") -> InstructionCount:
    return InstructionCount(kernel, "UTCHMMA", "tcgen05", line, warp, warp, 0, line)


SMALL, LARGE = 128 * 64 * 16, 128 * 256 * 16


def work(executed: list[InstructionCount], emulated: list[InstructionCount]) -> list[int]:
    return [count.multiply_adds for count in completed(executed, emulated)[0]]


def test_lines_and_kernels_are_kept_apart() -> None:
    emulated = [ptx(10, 4 * SMALL), ptx(20, 4 * LARGE), ptx(10, 4 * LARGE, kernel="other")]
    assert work([sass(20, 7), sass(10, 5), sass(10, 3, "other")], emulated) == [7 * LARGE, 5 * SMALL, 3 * LARGE]


def test_shapes_of_one_line_are_told_apart_by_order() -> None:
    emulated = [ptx(10, 4 * SMALL), ptx(10, 2 * LARGE, thread=2)]
    assert work([sass(10, 5), sass(10, 3)], emulated) == [5 * SMALL, 3 * LARGE]


def test_copies_of_one_shape_need_no_order() -> None:
    assert work([sass(10, 1), sass(10, 2), sass(10, 3)], [ptx(10, 4 * LARGE)]) == [LARGE, 2 * LARGE, 3 * LARGE]


def test_lines_of_the_instruction_join_where_calls_are_told_differently() -> None:
    """Debug information of SASS names every call, the emulator only those that tell places apart."""
    emulated = [replace(ptx(30, 4 * SMALL), line=5), replace(ptx(20, 4 * LARGE), line=5)]
    executed = [replace(sass(30, 3), line=5), replace(sass(40, 2), line=5)]
    assert work(executed, emulated) == [3 * SMALL, 2 * LARGE]


def test_the_smallest_counts_where_order_tells_nothing() -> None:
    executed, emulated = [sass(10, 5), sass(10, 3), sass(10, 1)], [ptx(10, 4 * SMALL), ptx(10, 4 * LARGE)]
    counts, notes = completed(executed, emulated)
    assert [count.multiply_adds for count in counts] == [5 * SMALL, 3 * SMALL, SMALL]
    assert "3 UTC*MMA stand for 2 tcgen05.mma at line 10" in notes[-1]


def test_what_the_emulator_never_executed_counts_as_nothing_and_is_named() -> None:
    counts, notes = completed([sass(10, 5), sass(11, 5)], [ptx(11, 4 * SMALL)])
    assert [count.multiply_adds for count in counts] == [0, 5 * SMALL]
    assert "UTCHMMA at line 10" in notes[-1]


def test_guards_that_were_off_did_nothing_and_other_instructions_stay_as_they_are() -> None:
    fma = InstructionCount("k", "FFMA", "fma", 10, 1, 32, 32)
    off = replace(sass(10, 5), thread=0)
    assert work([fma, off], [ptx(10, 4 * SMALL)]) == [32, 0]
    assert completed([fma], [ptx(10, SMALL)]) == ((fma,), ())
