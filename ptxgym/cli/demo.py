"""`ptxgym demo`: one episode of three turns, as an agent would live through it."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
import time
from pathlib import Path

from rich.panel import Panel
from rich.rule import Rule
from rich.text import Text

from ptxgym import native
from ptxgym.cli.console import out, plain, score_bar, style_of
from ptxgym.envs import load_env
from ptxgym.episode import Episode, Turn
from ptxgym.errors import UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.feedback import render
from ptxgym.task import Solution, Task, load_task, oracle

ENV = "PTX-Gemm-H100"
SHOWN_BYTES = 3000


def run_demo() -> None:
    """Play the episode and print it.

    Raises:
        UsageError: in a wheel, which carries no solutions.
        InfrastructureError: if the machine failed.
    """
    config = load_env(ENV)
    script = _script(load_task(config.task), config.arch)
    for target in native.targets().values():  # minutes, the first time: before the first turn's clock runs
        native.build(target)
    with Evaluator("emulator") as evaluator:
        episode = Episode(ENV, evaluator, turns=3)
        task = episode.task
        out.print(Rule(plain(f"{ENV}: {task.title}")))
        out.print(
            plain(
                "An agent has three turns. Each turn is a whole CUDA file; its PTX is compiled for sm_90a and\n"
                "executed on this CPU. No GPU is used, so there are no times, and 0.50 is the best score here."
            )
        )
        for kernel, text, intent in script:
            _play(episode, kernel, text, intent, task.folder)
    out.print(Rule())
    scores = " → ".join(f"{turn.score:.2f}" for turn in episode.turns)
    rewards = " + ".join(f"{turn.reward:.2f}" for turn in episode.turns)
    out.print(plain(f"Scores {scores}; rewards {rewards}: the episode pays each gain of its best score once."))
    naive = _shown(task.folder / script[0][0].file)
    out.print(Panel(plain(next_steps(naive)), title="Next", title_align="left", expand=False))


def next_steps(kernel: str) -> str:
    """Return commands that run as they stand in the shell that called this; `kernel` is a file to start from."""
    rows = [
        ("ptxgym doctor", "what this machine can do"),
        (f"ptxgym show {ENV}", "the prompt that an agent gets"),
        (f"cp {kernel} my_kernel.cu", "a kernel to start from"),
        (f"ptxgym eval my_kernel.cu --env {ENV}", "its verdict"),
        ("ptxgym --help", "everything else"),
    ]
    if (activate := activation()) is not None:
        rows.insert(0, (activate, "puts ptxgym on the PATH"))
    width = max(len(command) for command, _ in rows)
    lines = [f"{command:<{width}}   {what}" for command, what in rows]
    return "\n".join([*lines, f'python: import gymnasium, ptxgym; env = gymnasium.make("{ENV}")'])


def activation() -> str | None:
    """Return what makes `ptxgym` a command of the calling shell; None where it is one already."""
    own = Path(sys.prefix) / "bin"
    found = shutil.which("ptxgym")
    if found is not None and Path(found).parent.resolve() == own.resolve():
        return None
    if (own / "activate").is_file():
        return f". {_shown(own / 'activate')}"
    return f"export PATH={shlex.quote(str(own))}:$PATH"


def _shown(path: Path) -> str:
    """Return a path as the calling shell takes it: relative where it lies below the working folder."""
    with contextlib.suppress(ValueError):
        path = path.relative_to(Path.cwd())
    return shlex.quote(str(path))


def _script(task: Task, arch: str) -> list[tuple[Solution, str, str]]:
    """The three turns with their texts: the first proven kernel, the first teaching kernel, the oracle."""
    if not task.solutions.get(arch) or not task.examples.get(arch):
        raise UsageError(f"the demo needs the kernels of task {task.name} for {arch}; run it in a checkout")
    turns = (
        (task.solutions[arch][0], "Start simple: is it right?"),
        (task.examples[arch][0], "Go for the tensor cores, in a hurry."),
        (oracle(task, arch), "Wait where the hardware must be waited for, and do it well."),
    )
    return [(kernel, task.source(kernel), intent) for kernel, intent in turns]


def _play(episode: Episode, kernel: Solution, text: str, intent: str, folder: Path) -> None:
    number = len(episode.turns) + 1
    out.print()
    out.print(Rule(f"turn {number}: {intent}", align="left"))
    out.print(plain(f"{_shown(folder / kernel.file)}: {kernel.summary}", "dim"))
    start = time.perf_counter()
    with out.status("compiling, recording, executing, judging …"):
        turn = episode.submit(text)
    _print_turn(turn, time.perf_counter() - start)


def _print_turn(turn: Turn, seconds: float) -> None:
    shown = turn.verdict.model_copy(update={"plan": None})
    headline, _, rest = render(shown, turn.source, cap_bytes=SHOWN_BYTES).partition("\n")
    out.print(plain(headline, f"bold {style_of(turn.verdict)}"))
    out.print(plain(rest.rstrip("\n")))
    line = Text.assemble(
        "\nscore ", score_bar(turn.score), f"  reward {turn.reward:+.2f}", (f"  {seconds:.1f} s", "dim")
    )
    out.print(line)
