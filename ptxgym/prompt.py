"""Task and environment → the text that an agent reads before its first turn.

Everything comes from content: another task or another generation needs no word changed here.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ptxgym.device.cuda.model import Tier
from ptxgym.envs import EnvConfig
from ptxgym.judge.correctness import CLOSENESS_STEPS
from ptxgym.judge.evidence import TARGET_COVERAGE
from ptxgym.knowledge import render_knowledge
from ptxgym.plan import device_profile
from ptxgym.reward import CLOSE_SCORE, CORRECT_SCORE, COVERAGE_SCORES, RAN_SCORE, REDUNDANCY_LIMIT, TARGET_SCORE
from ptxgym.task import Arch, Task, load_arch
from ptxgym.variants import load_variant

WIDTH = 110


@dataclass(frozen=True)
class Measuring:
    """Where and how speed is measured."""

    gpu: str
    """Such as `NVIDIA H200`."""
    tier: Tier
    workload: str


def render_prompt(
    config: EnvConfig, *, init: str | None = None, skeleton: str | None = None, measured: Measuring | None = None
) -> str:
    """Render the prompt of an environment: task, interface, contract, required instructions, rules, budgets, score.

    Behind them come the parts of the knowledge pack that the environment names, then the kernels given.

    Args:
        config: The environment.
        init: A kernel to start from; it is shown.
        skeleton: A kernel of which only marked regions may be changed; it is shown.
        measured: The GPU that runs and times submissions; None where the emulator runs them.

    Raises:
        UnknownNameError: if the environment's task, variant or architecture or a part of knowledge does not exist.
        ContentError: if a file of the task or of the knowledge pack is malformed.
    """
    task, arch = load_variant(config.task, config.variant), load_arch(config.arch)
    parts = [
        f"# {task.title} for {config.arch.upper()} ({arch.code})",
        "\n".join(line for part in task.summary.splitlines() for line in _paragraph(part)),
        _section("Answer", _answer(config)),
        _section("Interface", _interface(task)),
        _section("Contract", _contract(task)),
        _section("Required instructions", _instructions(task, arch)),
        _section("Rules", _rules(arch)),
        _section("Hardware", _hardware(config.arch)),
        _section("Score", _score(arch)),
    ]
    if measured is not None:
        parts.insert(-1, _section("Measurement", _measurement(measured)))
    parts += [section for _, section in render_knowledge(config.arch, config.knowledge, config.task)]
    if skeleton is not None:
        parts.append(_section("Skeleton", (*_SKELETON, *_fenced(skeleton))))
    if init is not None:
        parts.append(_section("Start from this kernel", _fenced(init)))
    return "\n\n".join(parts) + "\n"


_SKELETON = (
    "Only the text between a `// ptxgym: begin <name>` line and the next `// ptxgym: end` line may change; everything "
    "else, the marking lines included, must come back as it is.",
)


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join((f"## {title}", *lines))


def _fenced(text: str) -> tuple[str, ...]:
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return (f"{fence}cuda", text.rstrip("\n"), fence)


def _answer(config: EnvConfig) -> Iterable[str]:
    turns = "one turn" if config.turns == 1 else f"{config.turns} turns"
    yield from _paragraph(
        f"One self-contained CUDA C++ file with inline PTX, the whole file every time. You have {turns}; after each "
        "you are told what the compiler, the numbers, the hazard checks and the instruction counters say."
    )


def _interface(task: Task) -> Iterable[str]:
    yield "```c++"
    yield f"{task.signature.declaration()};"
    yield "```"
    for tensor in (*task.inputs, *task.outputs):
        role = "input" if tensor in task.inputs else "output, allocated by the caller and not cleared"
        yield f"- `{tensor.name}`: {tensor.dtype} [{', '.join(tensor.shape)}], row-major, device memory; {role}"


def _contract(task: Task) -> Iterable[str]:
    for name, axis in task.axes.items():
        multiple = f"a multiple of {axis.multiple_of}, " if axis.multiple_of > 1 else ""
        fixed, free = f"always {axis.min}", f"{multiple}{axis.min} to {axis.max}, known at run time only"
        yield f"- `{name}`: {fixed if axis.min == axis.max else free}"
    shown = {name: workload for name, workload in task.workloads.items() if name != "schedules"}
    for name, workload in shown.items():
        sizes = ", ".join(f"{axis}={value}" for axis, value in workload.axes.items())
        hidden = ", and one more size that is drawn in secret" if workload.hidden else ""
        if name == "hardware":
            must = "end" if any(tensor.derived for tensor in task.inputs) else "be right"
            hidden = f"; on a GPU whole{hidden}; without one a sample of its CTAs (or clusters) runs, and must {must}"
        elif hidden:
            hidden += "; on the emulator with few SMs"
        yield f"- workload `{name}`: {sizes}{hidden}"
    axes = task.workload("emulation").axes
    yield (
        f"- on the emulator one call may execute {task.warp_instruction_budget(axes):,} warp instructions on workload "
        f"`emulation` ({task.budget.warp_instructions})"
    )


def _instructions(task: Task, arch: Arch) -> Iterable[str]:
    families = " or ".join(f"`{family}`" for family in arch.matrix_families)
    yield from _paragraph(
        f"{families} must do at least {TARGET_COVERAGE:.0%} of the operator's multiply-adds "
        f"({task.counts.multiply_adds}), counted as they execute, and all other instructions together at most "
        f"{REDUNDANCY_LIMIT:.0%}. What the target instructions compute must reach the output. Instructions that are "
        "present but not executed, or whose work is not used, count for nothing."
    )


def _rules(arch: Arch) -> Iterable[str]:
    yield from _item(
        "Everything is ordered on `stream`, which the default stream does not wait for: launch, fill and copy on it "
        "(`cudaMemsetAsync`, `cudaMemcpyAsync`), or on streams that fork from it and join it again by events. Several "
        "kernels and workspaces (`cudaMallocAsync`) are allowed."
    )
    yield from _item(
        "Host code is recorded, not trusted: it cannot read device memory, and what it launches may depend on the "
        "sizes only, not on addresses, time or randomness. Copies to the host, graphs, module loading and run-time "
        "compilation are refused. `cuTensorMapEncodeTiled` may be called as it is, or through its entry point."
    )
    yield from _item(
        "`run` is called for several sizes, each at addresses of its own: keep nothing in `static` variables."
    )
    yield from _item(
        f"Compiled by CUDA 13 for `{arch.code}` with `-O3 -std=c++17`; only headers of the CUDA toolkit and of the C++ "
        "standard library can be included."
    )
    yield from _item(
        "Synchronise as PTX demands: a certain hazard, in memory of any kind or in registers, fails the turn even "
        "where the numbers are right."
    )


def _hardware(arch: str) -> Iterable[str]:
    profile = device_profile(arch)
    yield f"- {profile.name}, compute capability {profile.cc_major}.{profile.cc_minor}, {profile.sm_count} SMs"
    optin, plain = profile.smem_optin_bytes, profile.smem_per_block_bytes
    yield f"- shared memory per CTA: {optin:,} bytes ({plain:,} without opt-in)"
    yield f"- per SM: {profile.registers_per_sm:,} registers (at most 255 a thread), {profile.threads_per_sm:,} threads"
    yield f"- L2 cache {profile.l2_bytes >> 20} MiB; memory {profile.memory_bytes >> 30} GiB"


_TIERS: Mapping[Tier, str] = {
    "rl": "a kernel is timed if it is right and the emulator counts that it runs on target instructions",
    "standard": "Nsight Compute counts executed instructions, and every right kernel is timed",
    "publish": "Nsight Compute counts executed instructions, and every right kernel is timed at length",
}


def _measurement(measured: Measuring) -> Iterable[str]:
    yield from _item(
        f"Submissions run on an {measured.gpu}, at the sizes of workload `{measured.workload}`. Tier "
        f"`{measured.tier}`: {_TIERS[measured.tier]}. The emulator runs them too, at its own sizes, and names causes."
    )
    yield from _item(
        "Every call is cold: L2 is flushed, variables of the module are restored, buffers lie elsewhere. All kernels, "
        "fills and copies of `run` count. Calls alternate with those of vendor libraries; the best of them is the "
        "baseline, and the speed-up that pays is the lower end of its 95 % interval."
    )


def _score(arch: Arch) -> Iterable[str]:
    families = "/".join(arch.matrix_families)
    parts = ", ".join(f"{value:.2f} from {share:.0%}" for share, value in reversed(COVERAGE_SCORES))
    yield (
        "- 0: rejected, does not compile, refused launch, instruction that the emulator lacks, fault, hang, "
        "over budget, hazard, changed input, no output written"
    )
    closest = RAN_SCORE + CLOSE_SCORE * (1 - 1 / CLOSENESS_STEPS)
    yield f"- {RAN_SCORE:.2f} to {closest:.3f}: runs clean but wrong, by how close the output is"
    yield f"- {CORRECT_SCORE:.2f}: right on every draw and size"
    yield f"- right, and {families} does a share of the multiply-adds: {parts}"
    yield f"- {TARGET_SCORE:.2f}: right, and {families} does what is required above"
    yield f"- above {TARGET_SCORE:.2f}: speed over the best vendor library, on a GPU only; the emulator takes no times"


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _item(text: str) -> list[str]:
    return textwrap.wrap(f"- {text}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
