"""`ptxgym verify`: proven kernels against the verdicts that their tasks name."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rich.progress import track
from rich.table import Table

from ptxgym.cli.console import err, out, plain
from ptxgym.envs import EnvConfig
from ptxgym.errors import UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.reward import TARGET_SCORE
from ptxgym.task import BASE, Solution, Task, load_task
from ptxgym.variants import load_variant, variants_of
from ptxgym.verdict import Evidence, Verdict


def choose_variants(configs: Sequence[EnvConfig], wanted: str, seed: int) -> list[EnvConfig]:
    """Return the environments with all variants of their tasks, or with so many at random.

    Raises:
        UsageError: if `wanted` is neither `all` nor a number from 1.
    """
    found = [
        config.override(variant=variant.name)
        for config in configs
        for variant in variants_of(load_task(config.task))
        if variant.name != BASE
    ]
    if wanted == "all":
        return found
    if not wanted.isdecimal() or int(wanted) < 1:
        raise UsageError(f"--variants takes a number from 1 or 'all', not {wanted!r}")
    return random.Random(seed).sample(found, min(int(wanted), len(found)))


def verify_envs(configs: Sequence[EnvConfig], device: str = "emulator") -> bool:
    """Judge every solution, and on the emulator every teaching kernel; print a table; return whether all is as it must.

    Raises:
        UsageError: if there is nothing to verify, as in a wheel, which carries no solutions, or `device` cannot be had.
    """
    table = Table(
        "environment", "variant", "kernel", "status", "score", "coverage", "mostly", "", box=None, header_style="bold"
    )
    good = True
    with Evaluator(device) as evaluator:
        work = [(config, *each) for config in configs for each in _kernels(config, evaluator)]
        for config, task, kernel, text in track(work, "verifying", console=err, transient=True):
            verdict = evaluator.evaluate(text, task, config.arch)
            problems = mismatches(kernel, verdict)
            good = good and not problems
            coverage = f"{verdict.evidence.coverage:.2f}" if verdict.evidence else "-"
            family = main_family(verdict.evidence) or "-"
            table.add_row(
                config.name,
                config.variant,
                kernel.file,
                str(verdict.status),
                f"{verdict.score:.2f}",
                coverage,
                family,
                plain("; ".join(problems), "red") if problems else plain("✓", "green"),
            )
    out.print(table)
    return good


def _kernels(config: EnvConfig, evaluator: Evaluator) -> list[tuple[Task, Solution, str]]:
    """Every solution and teaching kernel of an environment, with its text."""
    task = load_variant(config.task, config.variant)
    examples = task.examples.get(config.arch, ()) if evaluator.gpu(config.arch) is None else ()
    kernels = (*task.solutions.get(config.arch, ()), *examples)
    if not kernels:
        raise UsageError(f"task {task.name} has no solutions for {config.arch}")
    return [(task, kernel, task.source(kernel)) for kernel in kernels]


def mismatches(kernel: Solution, verdict: Verdict) -> list[str]:
    """Return in what `verdict` differs from what the task expects of `kernel`; on a GPU, speed may pay more."""
    found: list[str] = []
    if verdict.status is not kernel.status:
        found.append(f"status {verdict.status} ({verdict.code}) instead of {kernel.status}")
    timed = verdict.measured.timing is not None and kernel.score >= TARGET_SCORE
    if verdict.score < kernel.score - 1e-9 or (verdict.score > kernel.score + 1e-9 and not timed):
        found.append(f"score {verdict.score:.2f} instead of {kernel.score:.2f}")
    coverage = verdict.evidence.coverage if verdict.evidence is not None else None
    if kernel.coverage is not None and (coverage is None or abs(coverage - kernel.coverage) > 0.01):
        found.append(f"coverage {coverage} instead of {kernel.coverage:.2f}")
    family = main_family(verdict.evidence)
    if kernel.family is not None and family != kernel.family:
        found.append(f"most multiply-adds by {family} instead of {kernel.family}")
    return found


def main_family(evidence: Evidence | None) -> str | None:
    """Return the family that did most multiply-adds; None where none did any."""
    if evidence is None:
        return None
    name, count = max(evidence.families.items(), key=lambda item: item[1].multiply_adds, default=(None, None))
    return name if count is not None and count.multiply_adds else None
