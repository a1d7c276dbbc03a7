from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.device.cuda import sanitizer
from ptxgym.device.cuda.listing import Place
from ptxgym.device.cuda.ncu import Unavailable
from ptxgym.device.cuda.sanitizer import Tool, findings_of, sanitize
from ptxgym.device.cuda.sanitizer_text import read_reports, trouble
from ptxgym.plan.model import LaunchPlan
from ptxgym.verdict import Finding, Severity

from ..executor.harness import GPU, Fake, launch, literal, plan, pointer

# Outputs of compute-sanitizer 2025.3.1 on an H200. Reports beyond the third of a kind are cut, and the source file is
# called kernel.cu as a submission is. `vmm_…`: buffers were mapped as the executor maps them; `exact_…`: allocated.
GOLDEN = Path(__file__).parents[3] / "golden" / "sanitizer"
KERNELS = {
    "oob_write": "_Z9oob_writePfi", "oob_read": "_Z8oob_readPKfPfi", "far_read": "_Z8far_readPKfPf",
    "misaligned": "_Z10misalignedPc", "shared_oob": "_Z10shared_oobPf", "race": "_Z4racePf",
    "race_write": "_Z10race_writePf", "divergent": "_Z9divergentPf", "uninit": "_Z6uninitPKfPf",
    "illegal": "_Z7illegalPf", "null_write": "_Z10null_writePf", "in_callee": "_Z9in_calleePfi",
    "bulk_oob": "_Z8bulk_oobPKcPfii", "bulk_store_oob": "_Z14bulk_store_oobPci",
    "mbarrier_garbage": "_Z16mbarrier_garbagePf", "static_shared_oob": "_Z17static_shared_oobPfi",
}  # fmt: skip
SOURCE = "\n".join(f"line {number}" for number in range(1, 200))


def made_plan(kernel: str, *sizes_bytes: int) -> LaunchPlan:
    buffers = [
        (name, "input" if name == "A" else "output", size) for name, size in zip("ABC", sizes_bytes, strict=False)
    ]
    return plan(buffers, launch(KERNELS[kernel]))


def found(
    name: str, tool: Tool, *sizes_bytes: int, listing: dict[str, dict[int, Place]] | None = None
) -> list[Finding]:
    """What is read of the output that compute-sanitizer had for a faulty kernel on an H200."""
    kernel = name.removeprefix("vmm_").removesuffix("_all").replace("mb_sync", "mbarrier_garbage")
    text = (GOLDEN / f"{name}.txt").read_text()
    return findings_of(text, tool, made_plan(kernel, *(sizes_bytes or (4096, 5 << 20))), listing or {}, SOURCE)


def test_a_write_past_the_end_names_thread_block_line_and_buffer() -> None:
    (finding,) = found("vmm_oob_write", "memcheck")
    assert (finding.code, finding.severity) == ("sanitizer.memcheck.invalid_global_write", Severity.ERROR)
    assert (finding.line, finding.source_line, finding.count) == (10, "line 10", 3)
    assert finding.kernel == "_Z9oob_writePfi"
    assert finding.message == (
        "Kernel oob_write writes 4 bytes of global memory out of bounds, 0 bytes past the end of A at line 10 "
        "(thread (188, 0, 0) of block (2, 0, 0))."
    )
    assert finding.parties[0].who == "thread (188, 0, 0) of block (2, 0, 0)" and finding.remedy


def test_padding_behind_a_buffer_counts_as_past_its_end() -> None:
    (finding,) = found("vmm_oob_read", "memcheck", 4092, 5 << 20)
    assert "reads 4 bytes of global memory out of bounds, 4 bytes past the end of A" in finding.message


def test_of_exact_allocations_the_distance_is_exact() -> None:
    text = (GOLDEN / "vmm_oob_read.txt").read_text().replace("2,097,152", "1,001").replace("is 1 bytes", "is 7 bytes")
    (finding,) = findings_of(text, "memcheck", made_plan("oob_read", 1001, 999), {}, SOURCE)
    assert "6 bytes past the end of A" in finding.message


def test_buffers_of_one_size_are_all_named_and_others_not() -> None:
    (finding,) = found("vmm_oob_read", "memcheck", 4096, 8192, 5 << 20)
    assert "0 bytes past the end of one of A, B " in finding.message
    (finding,) = found("vmm_oob_read", "memcheck", 5 << 20)
    assert "out of bounds at line 14" in finding.message


@pytest.mark.parametrize(
    ("name", "tool", "code", "line", "words"),
    [
        ("far_read", "memcheck", "invalid_global_read", 17, "far from every buffer"),
        ("null_write", "memcheck", "invalid_global_write", 58, "through a null pointer (offset 0)"),
        ("misaligned", "memcheck", "misaligned_global_write", 20, "at an address that is no multiple of 4"),
        ("shared_oob", "memcheck", "invalid_shared_write", 24, "at byte 1,200 of its block's shared memory"),
        ("static_shared_oob", "memcheck", "invalid_shared_write", 30, "at byte 240,000 of its block's"),
        (
            "vmm_bulk_oob",
            "memcheck",
            "invalid_global_read",
            82,
            "reads 2048 bytes of global memory out of bounds, across",
        ),
        ("bulk_oob", "memcheck", "invalid_global_read", 82, "out of bounds, across the end of A"),
        ("bulk_store_oob", "memcheck", "invalid_global_write", 95, "writes 2048 bytes"),
        ("vmm_in_callee", "memcheck", "invalid_global_write", 63, "Kernel in_callee writes 4 bytes"),
        ("illegal", "memcheck", "trap", 55, "executes a trap"),
        ("mbarrier_garbage", "memcheck", "exception", 105, "breaks off with an exception"),
        ("divergent", "synccheck", "divergent_thread_s_in_warp", 47, "misuses a barrier: divergent thread(s) in warp"),
        ("mb_sync", "synccheck", "missing_init", 105, "misuses a barrier: missing init"),
        ("uninit", "initcheck", "uninitialised_global_read", 51, "reads 4 bytes of global memory that nothing wrote"),
        ("vmm_uninit", "initcheck", "uninitialised_global_read", 51, "that nothing wrote"),
        ("race", "racecheck", "race", 36, "a write and a read of the same shared memory"),
        ("race_write", "racecheck", "race", 41, "a write and a write of the same shared memory"),
    ],
)
def test_what_each_tool_finds(name: str, tool: Tool, code: str, line: int, words: str) -> None:
    (finding, *others) = found(name, tool)
    assert others == []
    assert finding.code == f"sanitizer.{tool}.{code}"
    assert finding.severity is (Severity.ERROR if tool == "memcheck" else Severity.WARNING)
    assert finding.line == line and words in finding.message
    assert finding.kernel in KERNELS.values()
    assert finding.remedy and finding.parties and "0x" not in finding.message


def test_both_sides_of_a_race_are_parties() -> None:
    (finding,) = found("race", "racecheck")
    assert [(party.did, party.line) for party in finding.parties] == [
        ("writes shared memory", 36), ("reads shared memory", 37)
    ]  # fmt: skip
    assert finding.count == 2048 and ", the other at line 37," in finding.message


def test_the_line_is_that_of_the_call_where_the_access_is_in_a_wrapper() -> None:
    listing = {"_Z9in_calleePfi": {0xE0: Place(63, 65)}, "_Z9oob_writePfi": {0xB0: Place(10, 99)}}
    assert found("vmm_in_callee", "memcheck", listing=listing)[0].line == 65
    assert found("vmm_oob_write", "memcheck", listing=listing)[0].line == 99


def test_an_inlined_access_is_of_the_kernel_and_at_the_call_where_that_is_known() -> None:
    text = (GOLDEN / "exact_in_wrapper.txt").read_text()
    kernel, made = "_Z10in_wrapperPfi", plan([("C", "output", 4004)], launch("_Z10in_wrapperPfi"))
    (finding,) = findings_of(text, "memcheck", made, {}, SOURCE)
    assert (finding.kernel, finding.line) == (kernel, 57) and "Kernel in_wrapper writes" in finding.message
    assert "0 bytes past the end of C" in finding.message
    (finding,) = findings_of(text, "memcheck", made, {kernel: {0x90: Place(57, 62)}}, SOURCE)
    assert finding.line == 62


def test_a_function_that_is_not_inlined_is_named_with_its_kernel() -> None:
    text = (GOLDEN / "exact_in_function.txt").read_text()
    made = plan([("C", "output", 4004)], launch("_Z11in_functionPfi"))
    (finding,) = findings_of(text, "memcheck", made, {}, SOURCE)
    assert (finding.kernel, finding.line) == ("_Z11in_functionPfi", 66)


def test_the_lowest_thread_is_named_in_whatever_order_warps_come() -> None:
    text = (GOLDEN / "exact_shared_past.txt").read_text()
    assert text.index("(64,0,0)") < text.index("(0,0,0)")
    (finding,) = findings_of(text, "memcheck", plan([], launch("_Z11shared_pastPf")), {}, SOURCE)
    assert "at byte 1,200 of its block's shared memory" in finding.message and finding.count == 128
    assert finding.message.endswith("(thread (0, 0, 0) of block (0, 0, 0)).")


def test_places_come_in_the_order_of_the_code_not_of_the_warps() -> None:
    later, earlier = ((GOLDEN / f"{name}.txt").read_text() for name in ("vmm_oob_read", "vmm_oob_write"))
    text = later.replace("oob_read(const float *, float *, int)+0xb0", "oob_write(float *, int)+0xc0") + earlier
    findings = findings_of(text, "memcheck", made_plan("oob_write", 4096), {}, SOURCE)
    assert [finding.line for finding in findings] == [10, 14]


def test_a_kernel_with_a_short_name_of_c_is_not_found_in_others() -> None:
    text = (GOLDEN / "vmm_oob_write.txt").read_text().replace("oob_write(float *, int)", "_Z9oob_writePfi")
    both = plan([("A", "input", 4096)], launch("w"), launch("_Z9oob_writePfi"))
    assert findings_of(text, "memcheck", both, {}, SOURCE)[0].kernel == "_Z9oob_writePfi"
    assert findings_of(text, "memcheck", plan([], launch("w")), {}, SOURCE)[0].kernel is None


@pytest.mark.parametrize("name", ["oob_write", "oob_read", "in_callee", "in_wrapper", "local_oob", "plain_trap"])
def test_no_report_is_no_finding(name: str) -> None:
    text = (GOLDEN / f"{name}.txt").read_text()
    assert read_reports(text) == () and trouble(text) is None


def test_names_may_be_mangled_and_kernels_of_the_executor_are_not_accused() -> None:
    text = (GOLDEN / "vmm_oob_write.txt").read_text()
    mangled = text.replace("oob_write(float *, int)", "_Z9oob_writePfi")
    assert findings_of(mangled, "memcheck", made_plan("oob_write", 4096), {}, SOURCE)[0].kernel == "_Z9oob_writePfi"
    own = text.replace("oob_write(float *, int)", "ptxgym_residue(unsigned int)")
    assert findings_of(own, "memcheck", made_plan("oob_write", 4096), {}, SOURCE) == []


def test_kernels_in_anonymous_namespaces_are_known() -> None:
    name = "_ZN36_GLOBAL__N__2ea6481e_9_kernel_cu_run9oob_writeILi128EEEvPfi"
    for spelled in (name, "void <unnamed>::oob_write<(int)128>(float *, int)", "oob_write(float*, int)"):
        text = (GOLDEN / "vmm_oob_write.txt").read_text().replace("oob_write(float *, int)", spelled)
        (finding,) = findings_of(text, "memcheck", plan([("A", "input", 4096)], launch(name)), {}, SOURCE)
        assert finding.kernel == name and finding.message.startswith("Kernel oob_write writes")


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.txt")))
def test_whatever_is_cut_off_never_raises(name: str) -> None:
    lines = (GOLDEN / f"{name}.txt").read_text().splitlines()
    whole = read_reports("\n".join(lines))
    for end in range(len(lines)):
        cut = read_reports("\n".join(lines[:end]))
        assert len(cut) <= len(whole)


@given(st.lists(st.text(alphabet="= atby()+0x123,[]in.:", max_size=40), max_size=12))
def test_whatever_is_printed_never_raises(lines: list[str]) -> None:
    text = "\n".join(f"========= {line}" for line in lines)
    read_reports(text)
    trouble(text)


def test_a_tool_that_was_ended_says_so() -> None:
    assert trouble((GOLDEN / "hang_term.txt").read_text()) == "Error: couldn't find exit code."


@pytest.mark.parametrize(
    "said", ["Error: Target application terminated before first instrumented API call", "Device not supported"]
)
def test_trouble_is_named(said: str) -> None:
    assert trouble(f"========= COMPUTE-SANITIZER\n========= {said}\n") == said


class Tools:
    """A compute-sanitizer that is none: it runs its target and prints what it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._path = folder / "compute-sanitizer"

    def say(self, said: str, *, run: bool = True, env: str = "") -> None:
        (self.folder / "said").write_text(said)
        program = f'{env} "$@"; status=$?; env > {self.folder}/env-$tool' if run else "status=1"
        self._path.write_text(
            f'#!/bin/bash\necho "$@" >> {self.folder}/argv\ntool=$2\nwhile [[ $1 == --* ]]; do shift 2; done\n'
            f"{program}\ncat {self.folder}/said\nexit $status\n"
        )
        self._path.chmod(0o755)


@pytest.fixture
def tools(fake_driver: Path, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    made = Tools(tmp_path / "sanitizer")
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: made.folder / "compute-sanitizer")
    monkeypatch.setattr(sanitizer, "listing_of", lambda build: {})
    fake.start().kill()  # writes the driver's script
    made.driver = f"LD_LIBRARY_PATH={fake_driver} FAKE_CUDA={tmp_path}/script FAKE_CUDA_LOG={tmp_path}/log-$tool"  # type: ignore[attr-defined]
    return made


A = np.arange(1000, dtype=np.uint8)
COPY = plan(
    [("A", "input", 1000), ("C", "output", 1000), ("workspace0", "workspace", 64)],
    launch("copy", pointer("C"), pointer("A"), literal(1000, 8)),
)


def run(fake: Fake, replayed: LaunchPlan, *names: Tool, **more):  # type: ignore[no-untyped-def]
    build = fake.build()
    build.source.write_text(SOURCE)
    return sanitize(GPU, build, replayed, {"A": A}, names, **more)


def test_tools_run_one_call_each_and_initcheck_sees_what_nobody_filled(tools: Tools, fake: Fake) -> None:
    said = (GOLDEN / "vmm_oob_write.txt").read_text().replace("oob_write(float *, int)", "copy")
    tools.say(said, env=tools.driver)  # type: ignore[attr-defined]
    findings = run(fake, COPY, "memcheck", "initcheck")
    assert [finding.code.split(".")[1] for finding in findings] == ["memcheck", "initcheck"]
    assert sorted(line.split()[1] for line in (tools.folder / "argv").read_text().splitlines()) == [
        "initcheck",
        "memcheck",
    ]
    log = {tool: (fake.folder / f"log-{tool}").read_text() for tool in ("memcheck", "initcheck")}
    filled = {tool: len(re.findall(r"^memset8 \w+ ff ", text, re.MULTILINE)) for tool, text in log.items()}
    assert filled == {"memcheck": 2, "initcheck": 0}  # the output and the workspace
    assert {tool: text.count("allocate ") for tool, text in log.items()} == {"memcheck": 3, "initcheck": 0}


def test_findings_of_a_call_that_faults_are_read(tools: Tools, fake: Fake) -> None:
    tools.say((GOLDEN / "illegal.txt").read_text(), env=tools.driver)  # type: ignore[attr-defined]
    (finding,) = run(fake, plan([("A", "input", 1000)], launch("fault", literal(719, 4))), "memcheck")
    assert finding.code == "sanitizer.memcheck.trap" and finding.kernel is None


def test_a_call_that_hangs_ends_in_time_without_findings(tools: Tools, fake: Fake) -> None:
    tools.say("========= COMPUTE-SANITIZER\n", env=tools.driver)  # type: ignore[attr-defined]
    assert run(fake, plan([("A", "input", 1000)], launch("hang")), "synccheck", timeout_s=0.5) == ()


def test_what_keeps_it_from_working_is_named(tools: Tools, fake: Fake) -> None:
    tools.say("========= COMPUTE-SANITIZER\n========= Device not supported\n", run=False)
    found = run(fake, COPY, "memcheck")
    assert isinstance(found, Unavailable) and found.reason == "compute-sanitizer says: Device not supported"


def test_where_none_is_installed_it_says_so(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: None)
    found = run(fake, COPY, "memcheck")
    assert isinstance(found, Unavailable) and "not installed" in found.reason and "PATH" in found.fix


def test_every_golden_output_is_used() -> None:
    text = Path(__file__).read_text()
    assert [path.stem for path in GOLDEN.glob("*.txt") if not re.search(rf'"{path.stem}(\.txt)?"', text)] == []
