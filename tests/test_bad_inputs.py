"""Submissions that go wrong: each is told apart from the others, and nothing of them stays behind.

Every bad input runs once here, and the quick ones in fourteen rounds. `make soak` runs all of them in fifty.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptxgym.cache import Cache
from ptxgym.evaluator import Evaluator
from ptxgym.feedback import render
from ptxgym.task import Solution
from ptxgym.verdict import Stage, Status, Verdict
from tests.bad_kernels import BAD

# Name: status, code, what the message must say.
EXPECTED: dict[str, tuple[Status, str, str]] = {
    "empty": (Status.REJECTED, "submission.empty", "Send the source text"),
    "blank": (Status.REJECTED, "submission.empty", "Send the source text"),
    "ten_megabytes": (Status.REJECTED, "submission.too_large", "10,48.,... bytes; at most 262,144"),
    "binary": (Status.REJECTED, "submission.not_text", r"U\+007F"),
    "lone_surrogate": (Status.REJECTED, "submission.not_text", r"U\+D800"),
    "syntax_error": (Status.COMPILE_ERROR, "build.syntax", "line 5: expected an expression"),
    "no_run": (Status.REJECTED, "build.no_entry", 'no function `run` is defined. Expected: extern "C" void run'),
    "wrong_signature": (Status.REJECTED, "build.wrong_signature", r"Found: .*Expected: "),
    "include_outside": (Status.REJECTED, "build.foreign_include", "one self-contained file"),
    "incbin_outside": (Status.REJECTED, "build.foreign_include", "one self-contained file"),
    "has_include_outside": (Status.REJECTED, "build.foreign_include", "one self-contained file"),
    "infinite_template": (Status.COMPILE_ERROR, "build.recursion", "never ends; give it a base case"),
    "endless_constexpr": (Status.COMPILE_ERROR, "build.recursion", "never ends; give it a base case"),
    "host_abort": (Status.PLAN_ERROR, "plan.host_abort", "abort"),
    "host_exit": (Status.PLAN_ERROR, "plan.host_exit", "returning"),
    "host_segfault": (Status.PLAN_ERROR, "plan.host_fault", "null pointer"),
    "host_infinite_loop": (Status.PLAN_ERROR, "plan.host_hang", "CPU time without returning"),
    "fork_bomb": (Status.PLAN_ERROR, "plan.host_process", "without new processes"),
    "reads_device_pointer": (Status.PLAN_ERROR, "plan.device_pointer_access", "device memory of buffer A"),
    "opens_socket": (Status.PLAN_ERROR, "plan.host_network", "may not use the network"),
    "writes_file": (Status.PLAN_ERROR, "plan.host_file", "may not use files"),
    "reads_file": (Status.PLAN_ERROR, "plan.host_file", "may not use files"),
    "depends_on_time": (Status.PLAN_ERROR, "plan.not_deterministic", "from the arguments of `run`"),
    "depends_on_random": (Status.PLAN_ERROR, "plan.not_deterministic", "from the arguments of `run`"),
    "depends_on_address": (Status.PLAN_ERROR, "plan.not_deterministic", "from the arguments of `run`"),
    "launches_nothing": (Status.PLAN_ERROR, "plan.no_launch", "without launching a kernel"),
    "too_many_threads": (Status.LAUNCH_ERROR, "launch.block", "2048.*1024"),
    "too_much_shared": (Status.LAUNCH_ERROR, "launch.shared_memory", "300000.*232448"),
    "billion_iterations": (Status.HANG, "emulator.endless_loop", "loop of line 5 .*lane 0 of warp 0"),
    "infinite_kernel": (Status.HANG, "emulator.endless_loop", "loop of line 4 .*lane 0 of warp 0"),
    "barrier_deadlock": (Status.HANG, "emulator.deadlock", "barrier 1: 32 of 64"),
    "mbarrier_deadlock": (Status.HANG, "emulator.deadlock", "arrivals missing"),
    "device_malloc": (Status.NOT_EMULATED, "emulator.device_malloc", "allocate on the host"),
    "out_of_bounds": (Status.RUNTIME_FAULT, "memory.out_of_bounds", "past the end of C"),
    "trap": (Status.RUNTIME_FAULT, "kernel.trap", "trap"),
    "assert_fails": (Status.RUNTIME_FAULT, "kernel.assert", "C == nullptr.*:5"),
    "copies_to_host": (Status.PLAN_ERROR, "plan.device_to_host", "results and decisions on the device"),
    "graph_capture": (Status.PLAN_ERROR, "plan.refused_call", "cudaStreamBeginCapture"),
    "writes_input": (Status.INTEGRITY, "judge.input_modified", "input A.*read-only"),
    "wrong_output": (Status.WRONG_OUTPUT, "judge.wrong_output", "never written"),
}
TAKES_SECONDS = ("host_infinite_loop", "billion_iterations", "infinite_kernel")
NEVER_BUILT = ("syntax_error", "no_run", "wrong_signature", "incbin_outside", "infinite_template", "endless_constexpr")
ROUNDS, SOAK_ROUNDS = 14, 50
BAIT = "#define ORACLE_BAIT_7c1f 1\n"


@pytest.fixture(scope="module")
def bait(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that no submission may read, nor learn whether it is there."""
    file = tmp_path_factory.mktemp("bait") / "oracle.cuh"
    file.write_text(BAIT)
    return file


@pytest.fixture(scope="module")
def texts(bait: Path) -> dict[str, str]:
    return {name: text if isinstance(text, str) else text(bait) for name, text in BAD.items()}


def test_every_bad_input_is_expected() -> None:
    assert set(EXPECTED) == set(BAD)


@pytest.mark.parametrize("name", BAD)
def test_is_told_apart_with_a_way_out(name: str, texts: dict[str, str], evaluator: Evaluator) -> None:
    status, code, says = EXPECTED[name]
    verdict = evaluator.evaluate(texts[name], "gemm")
    assert verdict.status is status
    assert verdict.code == code or (code.endswith(".") and verdict.code.startswith(code))
    assert re.search(says, verdict.message), verdict.message
    assert verdict.score in (0.0, 0.05)
    assert not re.search(r"_Z\d|/tmp/tmp|0x7f", verdict.message), "no mangled names, paths or addresses"
    feedback = render(verdict, texts[name])
    assert len(feedback.encode()) <= 12_000 and verdict.code in feedback


def test_bait_is_neither_read_nor_confirmed(bait: Path, texts: dict[str, str], evaluator: Evaluator) -> None:
    absent = bait.with_name("absent.cuh")
    for name in ("include_outside", "incbin_outside", "has_include_outside"):
        present = evaluator.evaluate(texts[name], "gemm").model_dump_json()
        assert "ORACLE_BAIT" not in present
        text = texts[name].replace(str(bait), str(absent))
        missing = evaluator.evaluate(text, "gemm")
        assert (missing.status, missing.code) == (Status.REJECTED, "build.foreign_include")
        assert missing.message.replace(str(absent), "F") == Verdict.model_validate_json(present).message.replace(
            str(bait), "F"
        )


def test_written_file_is_not_there(texts: dict[str, str], evaluator: Evaluator) -> None:
    evaluator.evaluate(texts["writes_file"], "gemm")
    assert not Path("/tmp/ptxgym-was-here").exists()


def test_good_kernel_is_judged_right_between_bad_ones(
    texts: dict[str, str], kernels: dict[str, tuple[Solution, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptxgym.memory.VERDICTS_KEPT", 0)
    with Evaluator() as evaluator:
        for name in ("out_of_bounds", "mbarrier_deadlock", "fork_bomb", "writes_input", "assert_fails"):
            assert evaluator.evaluate(texts[name], "gemm").status is not Status.OK
            assert evaluator.evaluate(kernels["oracle"][1], "gemm").score == 0.5


class Traces:
    """What this process and its cache hold that could leak."""

    def __init__(self, cache: Cache) -> None:
        self.processes = sorted(_descendants(os.getpid()))
        self.files = sum(1 for _ in Path("/proc/self/fd").iterdir())
        self.temporary = sorted(path.name for path in Path("/tmp").iterdir() if "ptxgym" in path.name)
        self.staged = sorted(path.name for path in (cache.root / "tmp").iterdir())
        self.entries = cache.stats().entries
        self.rss_mib = sum(_rss_mib(process) for process in (os.getpid(), *self.processes))


def _descendants(process: int) -> Iterator[int]:
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            yield from _descendants(child)


def _rss_mib(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def leaves_nothing(texts: dict[str, str], rounds: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge `texts` again and again in this process, from scratch each time, and compare before and after."""
    monkeypatch.setattr("ptxgym.memory.VERDICTS_KEPT", 0)
    cache = Cache(folder)
    others = set(_descendants(os.getpid()))
    with Evaluator(cache=cache, random_schedules=1) as evaluator:

        def judge_all() -> list[tuple[str, str]]:
            return [(name, evaluator.evaluate(text, "gemm").code) for name, text in texts.items()]

        first = judge_all()
        for _ in range(3):
            judge_all()
        before = Traces(cache)
        for _ in range(rounds - 4):
            assert judge_all() == first
        after = Traces(cache)
        assert len(after.processes) == len(before.processes), "a worn worker is replaced, not added to"
        assert after.files <= before.files
        assert (after.temporary, after.staged) == (before.temporary, before.staged) and after.staged == []
        assert after.entries == before.entries
        assert after.rss_mib < before.rss_mib + 32 * rounds / SOAK_ROUNDS
        assert len(set(after.processes) - others) == 1, "one worker serves them all"
    assert set(_descendants(os.getpid())) == others


@pytest.mark.parametrize(
    "rounds", [ROUNDS, pytest.param(SOAK_ROUNDS, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_rounds_leave_no_process_file_or_memory(
    rounds: int, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {name: text for name, text in texts.items() if name not in (*TAKES_SECONDS, *NEVER_BUILT)}
    leaves_nothing(quick, rounds, tmp_path / "cache", monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_rounds_of_the_slow_ones_leave_nothing_either(
    texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = {name: texts[name] for name in (*TAKES_SECONDS, *NEVER_BUILT)}
    leaves_nothing(slow, SOAK_ROUNDS, tmp_path / "cache", monkeypatch)


def test_failed_builds_leave_no_entry(texts: dict[str, str], tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    with Evaluator(cache=cache) as evaluator:
        for name in NEVER_BUILT:
            assert evaluator.evaluate(texts[name], "gemm").stage is Stage.BUILD
    assert "build" not in cache.stats().entries
    assert list((cache.root / "tmp").iterdir()) == []


def test_network_is_out_of_reach_even_where_something_listens(evaluator: Evaluator) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        text = str(BAD["opens_socket"]).replace(
            "if (s >= 0) abort();",
            f"sockaddr_in to{{}}; to.sin_family = AF_INET; to.sin_port = htons({port}); "
            "to.sin_addr.s_addr = htonl(INADDR_LOOPBACK); connect(s, (sockaddr*)&to, sizeof to);",
        )
        verdict = evaluator.evaluate("#include <arpa/inet.h>\n" + text, "gemm")
        assert verdict.code == "plan.host_network"
        with pytest.raises(TimeoutError):
            server.accept()
