from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from ptxgym.errors import InfrastructureError
from ptxgym.sandbox import Access, Limits, isolation, run, spawn

SYSTEM = Access(execute=(Path("/usr"), Path("/lib"), Path("/lib64"), Path("/bin")))
PYTHON = Path(sys.executable).resolve()
PYTHON_HOME = Path(sys.base_prefix).resolve()
WITH_PYTHON = Access(execute=(*SYSTEM.execute, PYTHON_HOME, PYTHON))
FILESYSTEMS = [name for name in ("landlock", "namespace") if getattr(isolation(), name) == "ok"]
needs_file_view = pytest.mark.skipif(not FILESYSTEMS, reason="neither Landlock nor mount namespaces here")


def python(code: str, **options):
    options.setdefault("access", WITH_PYTHON)
    options.setdefault("timeout_s", 20)
    return run([PYTHON, "-I", "-S", "-c", textwrap.dedent(code)], **options)


def children() -> set[int]:
    """Live or dead processes whose parent is this one."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.add(int(stat.parent.name))
    return found


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def alive_with_argument(marker: str) -> list[int]:
    found = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in cmdline.read_bytes():
                found.append(int(cmdline.parent.name))
        except OSError:
            continue
    return found


def test_a_command_that_is_given_up_ends_at_once():
    given_up = threading.Event()
    threading.Timer(0.2, given_up.set).start()
    done = run(["/bin/sh", "-c", "echo out; sleep 600"], timeout_s=600, access=SYSTEM, given_up=given_up)
    assert (done.outcome, done.stdout) == ("killed", b"out\n") and done.wall_s < 60
    assert run(["/bin/sh", "-c", "exit 7"], timeout_s=60, access=SYSTEM, given_up=threading.Event()).code == 7


def test_reports_exit_status_and_output():
    done = run(["/bin/sh", "-c", "echo out; echo err >&2; exit 7"], timeout_s=10, access=SYSTEM)
    assert (done.outcome, done.code, done.stdout, done.stderr) == ("exited", 7, b"out\n", b"err\n")
    assert not done.truncated


def test_reports_the_signal():
    done = run(["/bin/sh", "-c", "kill -SEGV $$"], timeout_s=10, access=SYSTEM)
    assert (done.outcome, done.code) == ("signalled", signal.SIGSEGV)


def test_a_missing_program_is_the_callers_fault():
    with pytest.raises(InfrastructureError, match=r"/no/such/program.*No such file"):
        run(["/no/such/program"], timeout_s=10)


def test_bounds_the_output_and_reads_on():
    done = run(
        ["/bin/sh", "-c", "yes | head -c 5000000; echo end >&2"], timeout_s=20, access=SYSTEM, max_output_bytes=100
    )
    assert len(done.stdout) == 100
    assert done.truncated
    assert (done.outcome, done.code, done.stderr) == ("exited", 0, b"end\n")


def test_keeps_the_end_of_what_is_said_on_request():
    script = "yes | head -c 5000000 >&2; echo the end >&2; echo out"
    done = run(["/bin/sh", "-c", script], timeout_s=20, access=SYSTEM, error_tail_bytes=100)
    assert len(done.stderr) == 100 and done.stderr.endswith(b"y\nthe end\n")
    assert done.stdout == b"out\n" and not done.truncated
    short = run(["/bin/sh", "-c", "echo hm >&2"], timeout_s=20, access=SYSTEM, error_tail_bytes=100)
    assert short.stderr == b"hm\n"


def test_feeds_the_input_whole():
    data = bytes(range(256)) * 4000
    done = run(["/bin/cat"], timeout_s=20, access=SYSTEM, stdin=data)
    assert done.stdout == data


def test_ends_a_command_that_ignores_its_input():
    done = run(["/bin/true"], timeout_s=20, access=SYSTEM, stdin=b"x" * 1_000_000)
    assert (done.outcome, done.code) == ("exited", 0)


def test_environment_is_scrubbed(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    done = run(["/usr/bin/env"], timeout_s=10, access=SYSTEM, env={"ONLY": "this"})
    assert done.stdout == b"ONLY=this\n"
    assert b"hush" not in run(["/usr/bin/env"], timeout_s=10, access=SYSTEM).stdout


def test_closes_descriptors_but_those_named(tmp_path):
    named, unnamed = os.pipe(), os.pipe()
    for fd in unnamed:
        os.set_inheritable(fd, True)
    try:
        code = f"""
        import os
        for fd in {named[1]}, {unnamed[1]}:
            try:
                os.fstat(fd); print("open")
            except OSError:
                print("closed")
        os.write({named[1]}, b"hello")
        """
        done = python(code, pass_fds=[named[1]])
        assert done.stdout == b"open\nclosed\n"
        assert os.read(named[0], 10) == b"hello"
    finally:
        for fd in (*named, *unnamed):
            os.close(fd)


@needs_file_view
@pytest.mark.parametrize("filesystem", FILESYSTEMS)
def test_sees_only_what_is_granted(tmp_path, filesystem):
    readable, writable, hidden = tmp_path / "readable", tmp_path / "writable", tmp_path / "hidden"
    for folder in (readable, writable, hidden):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    (readable / "link").symlink_to(hidden / "file")
    access = Access(execute=WITH_PYTHON.execute, read=(readable,), write=(writable,))
    code = f"""
    import os
    def attempt(what, *arguments):
        try:
            with open(*arguments) as file: file.read() if arguments[1] == "r" else file.write("x")
            print(what, "yes")
        except OSError:
            print(what, "no")
    attempt("read readable", "{readable}/file", "r")
    attempt("write readable", "{readable}/file", "w")
    attempt("create readable", "{readable}/new", "w")
    attempt("read writable", "{writable}/file", "r")
    attempt("create writable", "{writable}/new", "w")
    attempt("read hidden", "{hidden}/file", "r")
    attempt("read link", "{readable}/link", "r")
    attempt("read up", "{readable}/../hidden/file", "r")
    attempt("read passwd", "/etc/passwd", "r")
    attempt("read own environment", "/proc/self/environ", "r")
    attempt("write null", "/dev/null", "w")
    """
    done = python(code, access=access, filesystem=filesystem)
    assert done.stdout.decode().splitlines() == [
        "read readable yes",
        "write readable no",
        "create readable no",
        "read writable yes",
        "create writable yes",
        "read hidden no",
        "read link no",
        "read up no",
        "read passwd no",
        "read own environment no",
        "write null yes",
    ]
    assert (readable / "file").read_text() == "readable"


@needs_file_view
@pytest.mark.parametrize("filesystem", FILESYSTEMS)
def test_executes_only_what_is_granted(tmp_path, filesystem):
    copy = tmp_path / "true"
    copy.write_bytes(Path("/bin/true").read_bytes())
    copy.chmod(0o755)
    granted = Access(execute=(*SYSTEM.execute, tmp_path))
    assert run([copy], timeout_s=10, access=granted, filesystem=filesystem).outcome == "exited"
    if filesystem == "landlock":  # a mount namespace grants execution with reading
        with pytest.raises(InfrastructureError, match="Permission denied"):
            run([copy], timeout_s=10, access=Access(execute=SYSTEM.execute, read=(tmp_path,)), filesystem=filesystem)
    with pytest.raises(InfrastructureError, match=r"Permission denied|No such file"):
        run([copy], timeout_s=10, access=SYSTEM, filesystem=filesystem)


SOCKETS = """
import socket
for family, kind in (socket.AF_INET, "STREAM"), (socket.AF_INET, "DGRAM"), (socket.AF_UNIX, "STREAM"):
    try:
        socket.socket(family, getattr(socket, "SOCK_" + kind)).close(); print("yes")
    except PermissionError:
        print("no")
"""


@pytest.mark.skipif(isolation().seccomp != "ok", reason="no seccomp here")
def test_network_is_denied_unless_asked_for():
    assert python(SOCKETS).stdout == b"no\nno\nno\n"
    assert python(SOCKETS, network=True).stdout == b"yes\nyes\nyes\n"


FORKS_AND_THREADS = """
import os, threading
t = threading.Thread(target=lambda: print("thread")); t.start(); t.join()
try:
    pid = os.fork()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0); print("fork")
except PermissionError:
    print("no fork")
try:
    os.kill(os.getppid(), 0); print("signal")
except PermissionError:
    print("no signal")
os.kill(os.getpid(), 0)
"""


@pytest.mark.skipif(isolation().seccomp != "ok", reason="no seccomp here")
def test_processes_are_denied_on_request_and_threads_are_not():
    assert python(FORKS_AND_THREADS, processes=False).stdout == b"thread\nno fork\nno signal\n"
    allowed = python(FORKS_AND_THREADS, filesystem="none").stdout
    assert allowed == b"thread\nfork\nsignal\n"


@pytest.mark.skipif(isolation().seccomp != "ok", reason="no seccomp here")
def test_cannot_touch_other_processes_or_namespaces():
    code = """
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (lambda: libc.ptrace(16, 1, 0, 0), lambda: libc.unshare(0x10000000), lambda: libc.syscall(425, 1, 0)):
        print(call(), ctypes.get_errno())
    """
    assert python(code).stdout == b"-1 1\n" * 3  # EPERM


def test_holds_no_capabilities_and_cannot_gain_any():
    status = python("print(open('/proc/self/status').read())", filesystem="none").stdout.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == int(fields["CapBnd"], 16) == 0
    assert fields["NoNewPrivs"] == "1"


def test_limits_hold():
    memory = "x = bytearray(200 << 20); print(len(x))"
    assert python(memory, limits=Limits(address_space_bytes=100 << 20)).stdout == b""
    assert python(memory, limits=Limits(data_bytes=100 << 20)).stdout == b""
    assert python(memory, limits=Limits(address_space_bytes=1 << 30)).stdout == b"209715200\n"


def test_cpu_limit_ends_a_loop():
    done = python("while True: pass", limits=Limits(cpu_s=1))
    assert done.outcome == "signalled"
    assert done.code in (signal.SIGXCPU, signal.SIGKILL)
    assert 0.9 < done.cpu_s < 3.5


def test_file_size_limit(tmp_path):
    code = f"open('{tmp_path}/big', 'wb').write(b'x' * 100000)"
    access = Access(execute=WITH_PYTHON.execute, write=(tmp_path,))
    python(code, access=access, limits=Limits(file_size_bytes=4096))
    assert (tmp_path / "big").stat().st_size <= 4096
    python(code, access=access)
    assert (tmp_path / "big").stat().st_size == 100000


def test_time_limit_ends_the_tree():
    done = run(["/bin/sh", "-c", "sleep 98761 & sleep 98761"], timeout_s=0.3, access=SYSTEM)
    assert done.outcome == "timeout"
    assert alive_with_argument("98761") == []


DAEMON = """
import os
ready, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("daemon", flush=True)
        os.write(tell, b"x")
        os.execv("/bin/sleep", ["sleep", "98762"])
    os._exit(0)
os.wait()
os.read(ready, 1)
"""


def test_a_daemon_dies_with_its_command():
    done = python(DAEMON)
    assert done.stdout == b"daemon\n"  # the control: it did run
    assert done.outcome == "exited"
    assert alive_with_argument("98762") == []


@pytest.mark.parametrize("session", ["", "setsid"])
def test_a_tree_that_grows_by_powers_of_two_is_stopped(session):
    # Bounded on purpose: a bomb without an end would take the machine along if this check ever failed.
    grow = f"""
    echo bomb
    if [ $0 -le 0 ]; then exec sleep 98764; fi
    for half in 1 2; do {session} /bin/sh -c "$1" $(($0 - 1)) "$1" 98764 & done
    wait
    """
    done = run(["/bin/sh", "-c", grow, "6", grow, "98764"], timeout_s=1.0, access=SYSTEM)
    assert done.outcome == "timeout" and done.stdout.count(b"bomb\n") > 15
    assert alive_with_argument("98764") == []


def test_leaves_no_children_or_descriptors():
    run(["/bin/true"], timeout_s=10, access=SYSTEM)
    before, fds = children(), open_descriptors()
    for _ in range(20):
        run(["/bin/sh", "-c", "exit 1"], timeout_s=10, access=SYSTEM)
    assert children() == before
    assert open_descriptors() == fds


def test_descriptors_that_a_fork_took_along_delay_nothing(monkeypatch):
    pipe, held = os.pipe, []
    leaks = 4  # status, lifeline, standard output and error; then comes a pipe of subprocess itself

    def leaky():
        read, write = pipe()
        if len(held) < leaks:
            held.append(os.dup(write))
        return read, write

    monkeypatch.setattr(os, "pipe", leaky)
    try:
        done = run(["/bin/echo", "said"], timeout_s=10**6, access=SYSTEM)
        assert (done.outcome, done.stdout) == ("exited", b"said\n")
        leaks = 6  # status and lifeline
        with spawn(["/bin/sleep", "1000"], access=SYSTEM) as process:
            assert process.kill().outcome == "killed"
    finally:
        for fd in held:
            os.close(fd)


def test_no_descriptors_left_is_the_machines_failure(monkeypatch):
    before = open_descriptors()
    calls = iter([os.pipe(), OSError(24, "Too many open files")])

    def pipe():
        answer = next(calls)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(InfrastructureError, match="Too many open files"):
        spawn(["/bin/true"], access=SYSTEM)
    assert open_descriptors() == before


def test_the_tree_dies_with_whoever_started_it():
    code = """
    from pathlib import Path
    from ptxgym.sandbox import Access, spawn
    places = tuple(Path(p) for p in ("/usr", "/lib", "/lib64", "/bin"))
    worker = spawn(["/bin/sh", "-c", "sleep 98763 & sleep 98763"], access=Access(execute=places))
    print("started", flush=True)
    input()
    """
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout.readline() == b"started\n"
        deadline = time.monotonic() + 10
        while len(alive_with_argument("98763")) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert alive_with_argument("98763") != []
        starter.kill()
    deadline = time.monotonic() + 10
    while alive_with_argument("98763") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert alive_with_argument("98763") == []


def test_a_worker_lives_talks_and_is_killed():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with spawn(["/bin/cat"], access=SYSTEM, **pipes) as worker:
        worker.stdin.write(b"ping\n")
        assert worker.stdout.read(5) == b"ping\n"
        assert worker.poll() is None
        assert worker.kill().outcome == "killed"
        assert worker.poll().outcome == "killed"
    with spawn(["/bin/sh", "-c", "exit 3"], access=SYSTEM) as worker:
        ended = worker.wait(10)
        assert (ended.outcome, ended.code) == ("exited", 3)
