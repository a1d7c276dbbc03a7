"""Host code that may not be: each misdeed has its own code, each twin without it makes a plan."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from ptxgym import sandbox
from ptxgym.verdict import Status
from tests.plan.conftest import Recorder, failed, planned

MISDEEDS = {
    0: ("plan.device_pointer_access", "host code read device memory of buffer A at offset 20"),
    1: ("plan.device_pointer_access", "host code wrote device memory of buffer B at offset 12"),
    2: ("plan.host_fault", "null pointer"),
    3: ("plan.host_fault", "overflowed its stack"),
    4: ("plan.host_abort", "aborted"),
    5: ("plan.host_abort", "my own fault"),
    6: ("plan.host_exit", "exit(3)"),
    7: ("plan.host_exit", "status 5"),
    8: (
        "plan.host_hang",
        "in call 1 of `run` in one process (the first), of 3 that share their CPU time: host code used 3 s",
    ),
    9: ("plan.host_memory", "3221225472 bytes"),
    10: ("plan.host_process", "without new processes"),
    11: ("plan.host_process", "thread"),
    12: ("plan.host_process", "system()"),
    13: ("plan.host_network", "socket"),
    14: ("plan.host_file", "/tmp/ptxgym-test-file"),
    15: ("plan.host_file", "/etc/hostname"),
    16: ("plan.host_file", "/tmp/ptxgym-test-folder"),
    17: ("plan.host_syscall", "rt_sigaction"),
    18: ("plan.host_process", "ptrace"),
    19: ("plan.refused_call", "libcublas.so.13"),
    20: ("plan.not_deterministic", "parameter 2"),
    21: ("plan.not_deterministic", "parameter 2"),
    22: ("plan.not_deterministic", "parameter 2"),
    23: ("plan.not_deterministic", "parameter 2"),
    24: ("plan.not_deterministic", "parameter 2"),
    25: ("plan.not_deterministic", "parameter 2"),
    26: ("plan.device_to_host", "cudaMemcpy"),
    27: ("plan.refused_call", "cudaGraphCreate"),
    28: ("plan.refused_call", "cuModuleLoad"),
    29: ("plan.refused_call", "cudaMallocManaged"),
    30: ("plan.refused_call", "cuTensorMapEncodeIm2col"),
    31: ("plan.host_hang", "waits for ever"),
    32: ("plan.use_after_free", "workspace0"),
    33: ("plan.pointer_out_of_bounds", "15888 bytes after the end of A"),
    34: ("plan.pointer_out_of_bounds", "256 bytes before A"),
    35: ("plan.workspace_limit", "5368709120 bytes"),
    36: ("plan.host_pointer", "host memory"),
    37: ("plan.operation_limit", "20000"),
    38: ("plan.bad_stream", "no stream"),
    39: ("plan.host_fault", "divided an integer by zero"),
    40: ("plan.refused_attribute", "11"),
    41: ("plan.not_deterministic", "parameter 2"),
    42: ("plan.host_process", "clone"),
    43: ("plan.host_process", "kill"),
    44: ("plan.host_abort", "an assertion of mine"),
    46: ("plan.invalid", "no such kernel"),
    47: ("plan.host_syscall", "signals blocked"),
    48: ("plan.host_memory", "host memory"),
    49: ("plan.host_memory", "bad_alloc"),
    50: ("plan.not_deterministic", "parameter 2"),
    51: ("plan.device_pointer_access", "buffer"),
    52: ("plan.host_exit", "MaxDynamicSharedMemorySize = 300000"),
    54: ("plan.host_fault", "illegal"),
    55: ("plan.host_process", "tgkill"),
    56: ("plan.host_syscall", "MAP_SHARED"),
    57: ("plan.invalid", "claims a failure of the machine"),
    58: ("plan.invalid", "20971520 bytes of uploads"),
    59: ("plan.host_exit", "before `run` returned"),
    60: ("plan.host_syscall", "system call"),
    61: ("plan.host_syscall", "MAP_GROWSDOWN"),
    63: ("plan.host_abort", 'much to say, my last word"'),
    64: ("plan.reference_limit", "the uploads before it hold more than 65536 pointers"),
    65: ("plan.reference_limit", "operation 2 (upload)"),
    67: ("plan.refused_attribute", "launch attribute 1000"),  # a number that cudaLaunchAttributeID cannot hold
}


@pytest.mark.parametrize("mode", sorted(MISDEEDS))
def test_misdeed_has_its_code(hosts: Recorder, mode: int) -> None:
    code, fragment = MISDEEDS[mode]
    failure = failed(hosts(mode, n=1))
    assert (failure.status, failure.code) == (Status.PLAN_ERROR, code), failure.message
    assert fragment in failure.message


def test_twin_makes_a_plan(hosts: Recorder) -> None:
    (launch,) = planned(hosts(0, n=0)).launches
    assert launch.params[2].raw == (42).to_bytes(8, "little")


def test_run_without_launch(hosts: Recorder) -> None:
    assert failed(hosts(0, n=2)).code == "plan.no_launch"


@pytest.mark.parametrize("mode", [62, 66])
def test_what_is_next_to_a_misdeed_makes_a_plan(hosts: Recorder, mode: int) -> None:
    assert planned(hosts(mode, n=1)).launches


def test_a_null_pointer_is_a_literal_and_an_ignored_error_leaves_no_operation(hosts: Recorder) -> None:
    plan = planned(hosts(53, n=1))
    first, second = plan.operations
    (failed_call,) = plan.failed_calls
    assert failed_call.endswith(": cudaErrorInvalidValue: target is no device memory")
    assert first.kind == second.kind == "launch"
    assert not first.params[1].refs and first.params[1].raw == bytes(8)


def test_a_forged_end_is_only_a_plan_without_launches(hosts: Recorder) -> None:
    assert failed(hosts(45, n=1)).code == "plan.no_launch"


def test_nothing_is_left_behind(hosts: Recorder) -> None:
    planned(hosts(0))  # what is kept of the native programs is kept from here on
    before = (_children(), _descriptors())
    for mode in (4, 6, 8, 10, 11, 13, 14):
        failed(hosts(mode, n=1))
    assert (_children(), _descriptors()) == before
    assert not Path("/tmp/ptxgym-test-file").exists() and not Path("/tmp/ptxgym-test-folder").exists()


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _children() -> list[str]:
    found = subprocess.run(["pgrep", "-P", str(os.getpid()), "-x", "recorder|sandbox"], capture_output=True, text=True)
    return found.stdout.split()


def test_an_interrupt_does_not_wait_for_host_code(hosts: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    given = queue.SimpleQueue[bool]()
    started, main = threading.Barrier(2), threading.get_ident()

    def run(*_: object, given_up: threading.Event, **__: object) -> None:
        if started.wait(60) == 0:
            signal.pthread_kill(main, signal.SIGINT)
            # One that comes right before the main thread begins to wait is seen when that ends: press again.
            if not given_up.wait(10):
                signal.pthread_kill(main, signal.SIGINT)
        given.put(given_up.wait(60))

    monkeypatch.setattr(sandbox, "run", run)
    with pytest.raises(KeyboardInterrupt):
        hosts(100)
    assert [given.get(timeout=30) for _ in range(2)] == [True, True]
