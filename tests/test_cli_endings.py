"""How commands end: streams that are closed, full or narrow, interrupts, and the statuses that tell of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ptxgym
from ptxgym.cli.console import Exit

COMMAND = str(Path(sys.executable).with_name("ptxgym"))


def shell(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which `ptxgym` is the installed command."""
    return subprocess.run(
        ["bash", "-c", script.replace("ptxgym", COMMAND)],
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, **env},
        cwd="/",
    )


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ("ptxgym list | head -0; exit ${PIPESTATUS[0]}", Exit.NO_READER, ""),
        ("ptxgym --help | head -0; exit ${PIPESTATUS[0]}", Exit.NO_READER, ""),
        ("ptxgym list > /dev/full", Exit.INFRASTRUCTURE, "ptxgym: cannot write: No space left on device\n"),
        ("ptxgym --version > /dev/full", Exit.INFRASTRUCTURE, "ptxgym: cannot write: No space left on device\n"),
        ("ptxgym list >&-", Exit.INFRASTRUCTURE, "ptxgym: standard output is closed\n"),
        ("ptxgym list >&- 2>&-", Exit.INFRASTRUCTURE, ""),
        ("ptxgym list > /dev/null", Exit.OK, ""),
        ("ptxgym show nothing 2>&-", Exit.USAGE, ""),
        ("ptxgym eval - --env PTX-Gemm-H100 <&-", Exit.USAGE, "ptxgym: cannot read standard input: it is closed\n"),
    ],
)
def test_streams_that_are_closed_or_full(script: str, status: Exit, said: str) -> None:
    done = shell(script)
    assert (done.returncode, done.stderr) == (status, said)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_streams_that_cannot_show_every_character(encoding: str) -> None:
    listed = shell("ptxgym list", PYTHONIOENCODING=encoding)
    assert listed.returncode == 0 and "Dense matrix product C = A" in listed.stdout and "B^T (BF16)" in listed.stdout
    verdict = shell("echo '// é' | ptxgym eval - --env PTX-Gemm-H100 --json", PYTHONIOENCODING=encoding)
    assert verdict.returncode == Exit.FAILED and verdict.stdout.isascii() and verdict.stdout.startswith("{")
    utf8 = shell("ptxgym list", PYTHONIOENCODING="utf-8")
    assert "A·Bᵀ" in utf8.stdout


@pytest.mark.parametrize("command", [(COMMAND,), (sys.executable, "-m", "ptxgym.cli")])
def test_content_that_is_not_there_is_one_line(command: tuple[str, ...]) -> None:
    for arguments in ("list", "show PTX-Gemm-H100"):
        done = subprocess.run(
            [*command, *arguments.split()],
            capture_output=True,
            text=True,
            env={**os.environ, "PTXGYM_CONTENT": "/nope"},
        )
        said = "ptxgym: PTXGYM_CONTENT names /nope, which is no folder; create it or correct the variable\n"
        assert (done.returncode, done.stdout, done.stderr) == (Exit.USAGE, "", said)
    assert shell("ptxgym --version", PTXGYM_CONTENT="/nope").returncode == Exit.OK


def test_a_malformed_environment_of_the_user_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "PTX-Bad-H100.toml").write_text("revision = \n")
    done = shell("ptxgym list", PTXGYM_CONTENT=str(tmp_path))
    assert done.returncode == Exit.USAGE and done.stderr.count("\n") == 1 and "PTX-Bad-H100.toml" in done.stderr


def test_the_locale_s_encoding_does_not_matter() -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = shell("echo 'int x = ; // é' | ptxgym eval - --env PTX-Gemm-H100 --json", **plain)
    assert done.returncode == Exit.FAILED and '"build.syntax"' in done.stdout, done.stderr


def test_the_package_itself_is_the_command() -> None:
    for module in ("ptxgym", "ptxgym.cli"):
        done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, cwd="/")
        assert (done.returncode, done.stdout) == (0, f"ptxgym {ptxgym.__version__}\n")


def test_help_shows_a_value_only_for_what_takes_one() -> None:
    lines = shell("ptxgym eval --help").stdout.splitlines()
    assert not any("<bool>" in line for line in lines if "--json" in line or "--notes" in line)
    assert any("--env" in line and "ID" in line for line in lines)


def test_version_is_shown() -> None:
    done = shell("ptxgym --version")
    assert (done.returncode, done.stdout) == (0, f"ptxgym {ptxgym.__version__}\n")


WAITS = """
import sys, time
from ptxgym import cli
from ptxgym.evaluator import Evaluator
def judge(*_):
    sys.stderr.write("waiting\\n")
    time.sleep(60)
Evaluator._judge = judge
sys.argv = ["ptxgym", "eval", "-", "--env", "PTX-Gemm-H100"]
cli.main()
"""
WRAPPED = WAITS.replace(
    "time.sleep(60)",
    "try:\n        time.sleep(60)\n    except BaseException as it:\n        raise SystemError('wait returned') from it",
)
"""As Cython does with what a handler raises."""
IMPORTS = """
import sys, builtins
from ptxgym import cli
load = builtins.__import__
def slow(name, *arguments, **more):
    if name.startswith("typer"):
        raise KeyboardInterrupt
    return load(name, *arguments, **more)
builtins.__import__ = slow
sys.argv = ["ptxgym", "list"]
cli.main()
"""


@pytest.mark.parametrize("script", [WAITS, WRAPPED], ids=["plain", "wrapped"])
def test_an_interrupt_while_waiting_is_one_line(script: str) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None and process.stderr is not None and process.stdout is not None
        process.stdin.write("text")
        process.stdin.close()
        assert process.stderr.readline() == "waiting\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert (process.wait(30), process.stdout.read(), process.stderr.read()) == (130, "", "ptxgym: interrupted\n")


def test_a_system_error_of_another_cause_is_a_bug() -> None:
    script = WAITS.replace("time.sleep(60)", "raise SystemError('wait returned') from ValueError('other')")
    done = subprocess.run([sys.executable, "-c", script], input="text", capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.endswith("SystemError: wait returned\n")


def test_an_interrupt_while_commands_are_imported_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "ptxgym: interrupted\n")


SCRIPT = "import sys\nfrom ptxgym.cli import main\nsys.exit(main())\n"
INTERRUPTED = "import signal, sys\nsys.stderr.write('importing\\n')\nsignal.raise_signal(signal.SIGINT)\n"


def started(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with a Gymnasium whose import is interrupted, which is what takes longest before the command."""
    (folder / "gymnasium.py").write_text(INTERRUPTED)
    root = str(Path(ptxgym.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), root])}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env)


def test_an_interrupt_before_the_command_can_treat_it_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "ptxgym").write_text(SCRIPT)
    for command in (
        [str(tmp_path / "ptxgym")],
        ["-m", "ptxgym"],
        ["-m", "ptxgym.cli"],
        ["-mptxgym"],
        ["-mptxgym.cli"],
        ["-Bm", "ptxgym"],
        ["-W", "ignore:my", "-Wignore:my", "-Xmy", "-X", "my", "--check-hash-based-pycs", "default", "-Bmptxgym"],
    ):
        done = started(tmp_path, *command, "list")
        assert (done.returncode, done.stderr) == (130, "importing\nptxgym: interrupted\n"), command


def test_other_programs_keep_their_interrupts(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("try:\n    import ptxgym\nexcept KeyboardInterrupt:\n    print('mine')\n")
    spawned = "import sys\nsys.argv = ['/bin/ptxgym', 'eval']\n" + (tmp_path / "other").read_text()  # as its parent's
    for command in ([str(tmp_path / "other")], ["-c", spawned]):
        done = started(tmp_path, *command)
        assert (done.returncode, done.stdout, done.stderr) == (0, "mine\n", "importing\n"), command
    for command in (["-m", "ptxgym.cluster.worker"], ["-mptxgym.cluster.worker", "-m", "ptxgym"]):
        done = started(tmp_path, *command)
        assert done.returncode == -signal.SIGINT and done.stderr.endswith("KeyboardInterrupt\n"), command


OWN = """
import atexit, signal
atexit.register(print, "at the end")
try:
    import ptxgym
except ImportError as error:
    print(error)
try:
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("mine")
"""


@pytest.mark.parametrize("fails", [False, True], ids=["", "cannot import it"])
def test_a_program_of_the_same_name_has_its_interrupts_back(tmp_path: Path, fails: bool) -> None:
    (tmp_path / "ptxgym").write_text(OWN)
    if fails:
        (tmp_path / "gymnasium.py").write_text("raise ImportError('broken')\n")
    root = str(Path(ptxgym.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), root])}
    done = subprocess.run([sys.executable, str(tmp_path / "ptxgym")], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("broken\n" if fails else "") + "True\nmine\nat the end\n"


def test_a_thread_of_a_program_of_the_same_name_may_import_the_library(tmp_path: Path) -> None:
    imports = "import threading\n\ndef load():\n    import ptxgym\n    print(ptxgym.__version__)\n\n"
    (tmp_path / "ptxgym").write_text(imports + "threading.Thread(target=load).start()\n")
    env = {**os.environ, "PYTHONPATH": str(Path(ptxgym.__file__).parents[1])}
    done = subprocess.run([sys.executable, str(tmp_path / "ptxgym")], capture_output=True, text=True, env=env)
    assert (done.stdout, done.stderr) == (f"{ptxgym.__version__}\n", "")


def test_the_command_treats_its_interrupts_itself(tmp_path: Path) -> None:
    ends = "import signal, sys\nfrom ptxgym.cli import main\ntry:\n    main()\nfinally:\n    "
    (tmp_path / "ptxgym").write_text(ends + "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n")
    done = subprocess.run([sys.executable, str(tmp_path / "ptxgym"), "--version"], capture_output=True, text=True)
    assert done.stdout == f"ptxgym {ptxgym.__version__}\nTrue\n"
