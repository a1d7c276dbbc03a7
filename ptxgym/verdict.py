"""What an evaluation says: one frozen value, from the stage reached down to the last finding.

Every stage returns either its own product or a `Failure`; the evaluator turns either into a `Verdict`. Nothing in the
deterministic part depends on the clock, on addresses or on the host; durations and measurements live in `Measured`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """Base of the typed, immutable values that travel between stages."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="strings")


class Stage(StrEnum):
    """How far a submission came."""

    SUBMISSION = "submission"
    BUILD = "build"
    PLAN = "plan"
    EXECUTE = "execute"
    JUDGE = "judge"


class Status(StrEnum):
    """What became of a submission: one closed list for every stage and every device."""

    OK = "ok"
    REJECTED = "rejected"
    COMPILE_ERROR = "compile_error"
    PLAN_ERROR = "plan_error"
    NOT_EMULATED = "not_emulated"
    LAUNCH_ERROR = "launch_error"
    RUNTIME_FAULT = "runtime_fault"
    HANG = "hang"
    BUDGET = "budget"
    HAZARD = "hazard"
    WRONG_OUTPUT = "wrong_output"
    INTEGRITY = "integrity"
    INFRA = "infra"


class Severity(StrEnum):
    """How sure and how grave a finding is.

    `error` is certain and changes the status; `warning` is an order that nothing guarantees; `note` is what real
    kernels get away with.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Diagnostic(Value):
    """A message of the compiler about the submission's own file."""

    severity: Severity
    message: str
    line: int | None = None
    column: int | None = None
    source_line: str | None = None


class Party(Value):
    """One side of a finding: who did what, at which line of the submission."""

    who: str
    """"warp 4", "TMA load", "wgmma of warpgroup 1"."""
    did: str
    """"stored 4 bytes at shared 0x840"."""
    line: int | None = None
    source_line: str | None = None


class Finding(Value):
    """A hazard that the emulator (or a sanitizer) saw."""

    code: str
    """Stable dotted name, such as `proxy.missing_fence`."""
    severity: Severity
    message: str
    line: int | None = None
    """Line of the submission; None where the instruction has none."""
    source_line: str | None = None
    parties: tuple[Party, ...] = ()
    remedy: str | None = None
    """What would order the parties, or otherwise mend it."""
    kernel: str | None = None
    count: int = 1
    """How often it was seen at this place."""
    source: str | None = None
    """Where it was seen besides the judged run: `emulator` (at its own sizes) or `compute-sanitizer`; such a finding
    names a cause and never changes status or score."""

    @property
    def explains_numbers(self) -> bool:
        """Whether this can be why an output is wrong; even a note is worth reading then."""
        return self.code.startswith(_NUMERIC_CAUSES)


_NUMERIC_CAUSES = (
    "barrier.divergent", "descriptor.", "memory.", "register.", "smem.", "tma.", "tmem.",
    "wgmma.uninitialised", "wmma.short_stride",
)  # fmt: skip


class OutputError(Value):
    """How one output compares with the reference, worst over the draws."""

    name: str
    ok: bool
    relative_error: float
    """Frobenius norm of the error over that of the reference; inf where the output holds NaN or Inf."""
    relative_budget: float
    worst_tile_error: float
    tile_budget: float
    worst_region: str | None = None
    """The worst tile as index ranges, such as `C[128:192, 0:64]`."""
    pattern: str | None = None
    """Where the wrong elements lie: whole tiles, a column stripe, the last rows, scattered."""
    explanations: tuple[str, ...] = ()
    """Simple causes that fit the numbers: a scale factor, a transposed tile, a missing term, unwritten elements."""
    closeness: float = 0.0
    """1 − error ÷ error of the best trivial predictor, in steps of ¼, in [0, 1]."""
    draw: str | None = None
    """The draw on which it was worst."""
    ptxbench_ok: bool | None = None
    """Whether PTXBench's published tolerance would have accepted it."""
    written: bool = True
    """Whether any element was written, on any draw."""
    always: bool = False
    """Whether it is wrong on every draw."""


class FamilyCount(Value):
    """Executed instructions of one family (`wgmma`, `tma`, `mma.sync`, `fma`, …)."""

    warp_instructions: int
    thread_instructions: int
    multiply_adds: int = 0


class Evidence(Value):
    """Which instructions did the operator's arithmetic."""

    source: str
    """`emulator`, `ncu` or `none`."""
    workload: str
    required_multiply_adds: int
    target_multiply_adds: int
    other_multiply_adds: int
    coverage: float
    """min(1, target ÷ required)."""
    target_ok: bool
    families: dict[str, FamilyCount]
    tma_bytes: int = 0
    ablation: str | None = None
    """`depends` if the output becomes wrong with the target instructions' results zeroed, `independent` if not, None if
    that was not run."""
    explanation: str | None = None
    """Why `target_ok` is false, in one sentence."""
    denied: bool = False
    """Whether a second witness contradicts the counts, so that they are credited with nothing."""


class BaselineTime(Value):
    """Measured time of one vendor library."""

    name: str
    """Such as `cuBLAS`."""
    time_us: float
    """Median."""
    version: str


class Timing(Value):
    """Measured speed of candidate against the best baseline; always None on the emulator."""

    speedup: float
    """Median over pairs of baseline ÷ candidate."""
    speedup_low: float
    speedup_high: float
    """Ends of the bootstrap interval of the median (95 %)."""
    candidate_us: float
    """Median."""
    baseline_us: float
    """Median of the best baseline."""
    baseline: str
    """Name of the best baseline, the one that counts."""
    pairs: int = 0
    stopped: str = ""
    """Why measuring ended: `narrow`, `pairs`, `time` or `slow` (far slower than the baseline)."""
    tflops: float | None = None
    roofline_us: float | None = None
    """Least time that the GPU's peak rates allow for the operator."""
    baselines: tuple[BaselineTime, ...] = ()
    """All that ran."""


class Stall(Value):
    """Why warps waited: Nsight Compute's warp state, and its share of all samples."""

    reason: str
    """As Nsight Compute spells it, such as `long_scoreboard`."""
    share: float


class HotLine(Value):
    """A source line where many samples fell."""

    line: int
    share: float
    source_line: str | None = None
    stall: str | None = None
    """The most frequent stall reason there."""


class KernelProfile(Value):
    """What Nsight Compute measured of one kernel (the longest launch of that name)."""

    kernel: str
    launches: int
    duration_us: float
    tensor_pipe_percent: float | None = None
    sm_throughput_percent: float | None = None
    memory_throughput_percent: float | None = None
    dram_throughput_percent: float | None = None
    occupancy_percent: float | None = None
    """Achieved."""
    theoretical_occupancy_percent: float | None = None
    occupancy_limiter: str | None = None
    """`registers`, `shared memory`, `warps`, `blocks` or `barriers`."""
    registers_per_thread: int | None = None
    smem_per_block_bytes: int | None = None
    bank_conflicts: int | None = None
    """Wavefronts of shared memory in excess of the ideal."""
    stalls: tuple[Stall, ...] = ()
    hot_lines: tuple[HotLine, ...] = ()


class Measured(Value):
    """What differs from run to run."""

    durations_s: dict[str, float] = {}
    timing: Timing | None = None
    profile: tuple[KernelProfile, ...] = ()
    """One per kernel of the plan, the longest first; empty on the emulator."""
    lock_held_s: float | None = None
    """How long the timing of this evaluation (or of its batch) kept the GPU to itself."""


class Provenance(Value):
    """Hashes and versions with which anyone can rerun the evaluation."""

    ptxgym: str
    task: str
    task_revision: int
    variant: str = "base"
    arch: str
    source_sha256: str
    build_key: str | None = None
    plan_hash: str | None = None
    compiler: str | None = None
    device: str | None = None
    """`emulator` or the name of the GPU, such as `NVIDIA H200`."""
    device_profile: str | None = None
    isolation: str | None = None
    conditions: str | None = None
    """Hash of the secret and the draws; the secret itself is never stored."""
    emulator_revision: str | None = None
    judge_revision: int | None = None
    tier: str | None = None
    """`rl`, `standard` or `publish`; None on the emulator."""
    driver: str | None = None
    libraries: dict[str, str] = {}
    """Versions of what measured: Nsight Compute, torch, cuBLAS, cuDNN, cupy."""


class Failure(Value):
    """A stage's answer to a submission that it cannot take further."""

    stage: Stage
    status: Status
    code: str
    """Stable dotted string, such as `plan.host_abort`."""
    message: str
    """One or two sentences: the thing, the value, the way out."""
    diagnostics: tuple[Diagnostic, ...] = ()
    findings: tuple[Finding, ...] = ()


class Verdict(Value):
    """Everything that ptxgym has to say about one submission under one set of conditions."""

    stage: Stage
    status: Status
    code: str
    message: str
    score: float
    outputs: tuple[OutputError, ...] = ()
    evidence: Evidence | None = None
    findings: tuple[Finding, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    printed: str = ""
    """What the submission's kernels printed (bounded, never trusted)."""
    notes: tuple[str, ...] = ()
    """What was not measured or not run, and why."""
    plan: str | None = None
    """The launch plan as a table."""
    provenance: Provenance
    measured: Measured = Measured()

    def deterministic(self) -> dict[str, Any]:
        """Return the part that equal texts share under equal conditions.

        On a GPU that is less than on the emulator: how often a loop waits, in which order sums are taken, what a
        sanitizer happens to see and how fast a kernel is may differ from run to run, and with them messages and score.
        """
        if self.provenance.tier is None:
            return self.model_dump(mode="json", exclude={"measured"})
        whole = self.model_dump(mode="json", exclude={"measured", "message", "score", "findings", "printed", "notes"})
        whole["outputs"] = [{"name": output.name, "ok": output.ok} for output in self.outputs]
        if self.evidence is not None:
            kept = ("source", "workload", "required_multiply_adds", "target_ok", "ablation")
            whole["evidence"] = {name: whole["evidence"][name] for name in kept}
        return whole
