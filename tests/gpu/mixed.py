"""Mixed submissions in random order: does every one get its verdict, and does nothing disturb the good ones?

    python -m tests.gpu.mixed [--count 200] [--workers 8] [--tier rl] [--seed 1] [--out FILE]
    python -m tests.gpu.mixed --device emulator --count 12 --workers 2      # without a GPU

Every text is new (a comment makes it so). Told in the end: verdicts that were not as expected; whether the judge
process is the one of the start; processes and GPU memory left over; whether the intervals of each good kernel's
speed-up hold the median of all of them.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

from ptxgym.evaluator import Evaluator
from ptxgym.task import Task, load_task
from tests.gpu.machine import descendants, gpu_memory_mib, judge_pid, settled_processes
from tests.gpu.report import Report, Row, arguments, median, no_gpu, say, table, timing_of
from tests.gpu.small import new_text, shrunk
from tests.gpu.submissions import Template, templates

HARDWARE = {"M": 2048, "N": 2048, "K": 2048}
EMULATION = {"M": 128, "N": 256, "K": 320}
MEMORY_SLACK_MIB = 2048
"""By how much the memory in use may grow: the judge keeps inputs and slots for results."""
DRIFT = 0.02
"""By how much the median of all may lie beside an interval: what ran before warms the chip, and lets it cool."""


def order(count: int, seed: int) -> list[tuple[str, Template]]:
    """Return `count` templates in random order, each kind as often as its weight says, at least once if it fits."""
    random_order = random.Random(seed)
    known = templates()
    hangs = [template for template in known if template.kind == "hang"]
    others = [template for template in known if template.kind != "hang"]
    chosen = [*others, *hangs][:count]
    weights = [template.weight for template in others]
    chosen += random_order.choices(others, weights, k=count - len(chosen))
    random_order.shuffle(chosen)
    return [(f"{number:03} {template.name}", template) for number, template in enumerate(chosen)]


def judged(evaluator: Evaluator, task: Task, device: str, template: Template, name: str) -> Row:
    """Evaluate one new text of a template; return its row."""
    verdict = evaluator.evaluate(new_text(template.text, name), task, "h100")
    allowed = template.expected if device == "cuda" else template.emulated
    return {
        "template": template.name,
        "kind": template.kind,
        "good": verdict.status in allowed,
        "expected": "/".join(allowed),
        "status": verdict.status.value,
        "code": verdict.code,
        "message": verdict.message[:300],
        "score": verdict.score,
        **timing_of(verdict),
        "stages": {stage: round(s, 3) for stage, s in verdict.measured.durations_s.items()},
    }


def speeds(rows: list[Row]) -> list[list[Any]]:
    """Return per good kernel: timed, median, spread, and how many intervals hold the median of the others."""
    found = []
    for name in sorted({row["template"] for row in rows if row.get("kind") == "good" and "speedup" in row}):
        timed = [row for row in rows if row.get("template") == name and "speedup" in row]
        middle = median(row["speedup"] for row in timed)
        assert middle is not None
        held = sum(row["low"] <= middle <= row["high"] for row in timed)
        near = all(row["low"] * (1 - DRIFT) <= middle <= row["high"] * (1 + DRIFT) for row in timed)
        spread = max(abs(row["speedup"] / middle - 1) for row in timed)
        found.append([name, len(timed), middle, 100 * spread, held, near])
    return found


def main() -> None:
    parser = arguments(__doc__, 150, device="cuda", tier="rl")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--workers", type=int, default=8, help="evaluations at once")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if no_gpu(options.device):
        return
    task = shrunk(load_task("gemm"), HARDWARE, EMULATION)
    report = Report("mixed", options.out, options.limit_s)
    arguments_of = {"tier": options.tier} if options.device == "cuda" else {"random_schedules": 1}
    started = time.perf_counter()
    with Evaluator(options.device, **arguments_of) as evaluator:
        known = templates()
        first = next(template for template in known if template.name == "wgmma")
        judged(evaluator, task, options.device, first, "warm")  # starts the judge and times the baseline
        pid, before, memory = judge_pid(evaluator), set(descendants()), gpu_memory_mib()
        report.each(
            order(options.count, options.seed),
            lambda template: judged(evaluator, task, options.device, template, f"{options.seed}"),
            options.workers,
        )
        alive = judge_pid(evaluator) == pid
        last = judged(evaluator, task, options.device, first, "last")
        grown = (gpu_memory_mib() or 0) - (memory or 0)
    left = settled_processes(set())
    rows = list(report.rows.values())
    report.state(
        device=options.device,
        tier=options.tier,
        seconds=round(time.perf_counter() - started, 1),
        judge_alive=alive,
        judge_pid=pid,
        processes_at_start=len(before),
        processes_left=list(left.values()),
        memory_grown_mib=grown,
        last_good=last["good"],
    )
    report.end(shown(report, rows, alive and last["good"] and not left and grown <= MEMORY_SLACK_MIB))


def shown(report: Report, rows: list[Row], sound: bool) -> int:
    """Print the tables; return 0 if everything was as expected."""
    kinds = Counter((row.get("kind", "?"), row["good"]) for row in rows)
    names = sorted({kind for kind, _ in kinds})
    say(table(["kind", "as expected", "not"], [[kind, kinds[kind, True], kinds[kind, False]] for kind in names]))
    for row in rows:
        if not row["good"]:
            said = row.get("problem") or f"{row['status']} {row['code']}, not {row['expected']}: {row['message']}"
            say(f"  {row['key']}: {said}")
    timed = speeds(rows)
    if timed:
        columns = ["good kernel", "timed", "speed-up", "farthest %", "interval holds median", f"all within {DRIFT:.0%}"]
        say(table(columns, timed))
    seconds = [row["seconds"] for row in rows if "seconds" in row]
    facts = report.facts
    say(
        f"{len(rows)} submissions, {sum(row['good'] for row in rows)} as expected, in {facts['seconds']} s "
        f"(one: median {median(seconds):.2f} s, longest {max(seconds):.2f} s); judge alive: {facts['judge_alive']}; "
        f"processes left: {len(facts['processes_left'])}; GPU memory grown by {facts['memory_grown_mib']} MiB"
    )
    good = sound and all(row["good"] for row in rows) and all(row[-1] for row in timed)
    return 0 if good else 1


if __name__ == "__main__":
    main()
