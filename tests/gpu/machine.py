"""What is left of evaluations on the machine: processes, GPU memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

QUERY_LIMIT_S = 20


def descendants(of: int | None = None) -> dict[int, str]:
    """Return the living descendants of a process by id, with their commands."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            head, _, tail = (folder / "stat").read_text().rpartition(")")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # it ended
            continue
        state, parent = tail.split()[:2]
        if state != "Z":
            children.setdefault(int(parent), []).append(int(folder.name))
            names[int(folder.name)] = command or head.partition("(")[2]
    found: dict[int, str] = {}
    rest = [os.getpid() if of is None else of]
    while rest:
        for child in children.get(rest.pop(), []):
            found[child] = names[child]
            rest.append(child)
    return found


def gpu_memory_mib() -> int | None:
    """Return the memory in use on the first GPU; None without one."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=QUERY_LIMIT_S, check=False)
    return int(done.stdout.split()[0]) if done.returncode == 0 and done.stdout.strip() else None


def settled_processes(allowed: set[int], limit_s: float = 10) -> dict[int, str]:
    """Return descendants beyond `allowed`, after those that are just ending had time to."""
    until = time.monotonic() + limit_s
    while True:
        left = {pid: command for pid, command in descendants().items() if pid not in allowed}
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.25)


def judge_pid(evaluator: object) -> int | None:
    """Return the judge process of an evaluator; None where none runs, as on the emulator."""
    judges = vars(evaluator).get("_judges", {})
    return next((judge.pid for judge in judges.values()), None)
