"""A task: an operator with its signature, axes, workloads, counts and proven solutions, read from `tasks/<name>/`."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from ptxgym import content
from ptxgym.errors import ContentError, UnknownNameError, UsageError
from ptxgym.expression import evaluate, names_in
from ptxgym.task_modules import BaselineModule, ReferenceModule, load_baselines, load_reference
from ptxgym.verdict import Status, Value

Axes = dict[str, int]
BASE = "base"
"""The variant of a task that `task.toml` describes."""
DType = Literal["bf16", "fp32"]
Draw = Literal["normal", "shifted", "spiky", "sharp", "cancelling", "integers"]
ITEM_BYTES: dict[DType, int] = {"bf16": 2, "fp32": 4}
_CPP_TYPE: dict[DType, str] = {"bf16": "__nv_bfloat16", "fp32": "float"}


class Arch(Value):
    """A GPU generation: what the compiler is told, and which instructions a task asks for."""

    name: str
    code: str
    """The compiler's name, such as `sm_90a`."""
    matrix_families: tuple[str, ...]
    """Families of matrix instructions whose multiply-adds count as coverage."""
    copy_families: tuple[str, ...]
    """Families of the generation's own copies, reported beside them."""


# wgmma: PTX ISA 9.7.15; tcgen05: 9.7.16; TMA: 9.7.9.27. All need architecture-specific targets.
ARCHITECTURES = MappingProxyType(
    {
        "h100": Arch(name="h100", code="sm_90a", matrix_families=("wgmma",), copy_families=("tma",)),
        "b200": Arch(name="b200", code="sm_100a", matrix_families=("tcgen05",), copy_families=("tma",)),
    }
)


def load_arch(name: str) -> Arch:
    """Return the GPU generation `name`.

    Raises:
        UnknownNameError: if there is none; suggests the nearest.
    """
    if name not in ARCHITECTURES:
        raise UnknownNameError(content.unknown("architecture", name, ARCHITECTURES))
    return ARCHITECTURES[name]


def _expression(text: str) -> str:
    names_in(text)
    return text


Expression = Annotated[str, AfterValidator(_expression)]
"""Integer arithmetic over axes, such as `2 * M * N * K`."""


class Cancelling(Value):
    """What the `cancelling` draw makes of an input: normal values times 2^`scale_log2` and a mean that takes turns."""

    mean: float
    scale_log2: int = 0
    along: str | None = None
    """Axis in whose second half the mean is negative; by default it is the same everywhere."""


class Tensor(Value):
    """One argument of `run`: a contiguous row-major array in device memory."""

    name: str = Field(pattern=r"^[A-Za-z_]\w*$")
    dtype: DType
    shape: tuple[str, ...] = Field(min_length=1)
    """Names of axes, outermost first: how the tensor lies in memory."""
    logical: tuple[str, ...] = ()
    """The same axes in the order in which reference, judge and baselines see the tensor; by default as it lies."""
    shifted_scale_log2: tuple[int, int] = (0, 0)
    """Least and greatest power of two by which the `shifted` draw scales this input."""
    sharp_scale_log2: int = 0
    """Power of two by which the `sharp` draw scales this input."""
    cancelling: Cancelling = Cancelling(mean=0.0)
    """How the `cancelling` draw makes sums over this input grow and cancel; by default it is normal there."""
    derived: bool = False
    """An input that is not drawn: `derived` of `reference.py` computes it from those that are."""

    @model_validator(mode="after")
    def _reordered(self) -> Self:
        if self.logical and sorted(self.logical) != sorted(self.shape):
            raise ValueError(f"logical holds {', '.join(self.logical)}, not the axes of shape, {', '.join(self.shape)}")
        if self.cancelling.along not in (None, *self.shape):
            raise ValueError(f"cancelling.along is {self.cancelling.along}, no axis of shape, {', '.join(self.shape)}")
        return self

    @property
    def to_logical(self) -> tuple[int, ...]:
        """Which axis of the memory each axis of the logical order is, as `transpose` takes it."""
        return tuple(self.shape.index(axis) for axis in self.logical or self.shape)

    @property
    def to_stored(self) -> tuple[int, ...]:
        """The inverse of `to_logical`."""
        return tuple((self.logical or self.shape).index(axis) for axis in self.shape)

    def sizes(self, axes: Axes) -> tuple[int, ...]:
        """Return the extents under `axes`, as the tensor lies in memory."""
        return tuple(axes[axis] for axis in self.shape)

    def size_bytes(self, axes: Axes) -> int:
        """Return the size in bytes under `axes`."""
        return math.prod(self.sizes(axes)) * ITEM_BYTES[self.dtype]


class Axis(Value):
    """What a kernel may rely on about one run-time size."""

    multiple_of: int = Field(default=1, ge=1)
    min: int = Field(default=1, ge=1)
    max: int = Field(ge=1)

    def problem(self, value: int) -> str | None:
        """Return what is wrong with `value`, or None."""
        if value % self.multiple_of:
            return f"is not a multiple of {self.multiple_of}"
        if not self.min <= value <= self.max:
            return f"lies outside {self.min} … {self.max}"
        return None


class Workload(Value):
    """A named size, the draws made on it, and the shapes of which one is hidden in every set of conditions."""

    axes: Axes
    draws: tuple[Draw, ...] = Field(min_length=1)
    hidden: tuple[Axes, ...] = ()
    """Shapes of which the run secret picks one; all are public, the pick is not."""
    hidden_draws: tuple[Draw, ...] = ()
    """Of these the run secret picks one that is made on the hidden shape; the others are made on `axes`."""
    least: dict[Draw, Axes] = Field(default_factory=dict)
    """Of hidden draws, from which sizes on they show what they are for; at smaller hidden shapes they show nothing, so
    they are made on `axes` then, and the last of `draws` on the hidden shape if no other is left."""

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if bool(self.hidden) != bool(self.hidden_draws):
            raise ValueError("hidden and hidden_draws must be given together")
        if strange := [draw for draw in self.least if draw not in self.hidden_draws]:
            raise ValueError(f"least names {', '.join(strange)}, no hidden draw")
        if doubled := [draw for draw in self.least if draw in self.draws]:
            raise ValueError(f"least names {', '.join(doubled)}, made on the workload's own axes as it is")
        if unknown := {axis for sizes in self.least.values() for axis in sizes} - set(self.axes):
            raise ValueError(f"least uses unknown axes {', '.join(sorted(unknown))}")
        if self.hidden_draws and set(self.hidden_draws) == set(self.least) and len(self.draws) == 1:
            raise ValueError(
                "least names every hidden draw, and there is one other: none is left for small hidden shapes"
            )
        return self

    def shows(self, draw: Draw, axes: Axes) -> bool:
        """Return whether a draw shows at `axes` what it is for."""
        return all(axes[axis] >= size for axis, size in self.least.get(draw, {}).items())


class Counts(Value):
    """What the operator costs: integer expressions over the axes."""

    multiply_adds: Expression
    """Multiply-adds that any algorithm for the operator does on matrix units."""
    flops: Expression
    bytes: Expression
    """Bytes that must cross the memory bus at least once."""


class Budget(Value):
    """What the emulator lets a submission execute for one call."""

    warp_instructions: Expression


class Solution(Value):
    """A kernel of the task's folder and what the emulator's verdict on it must be."""

    file: str
    summary: str
    status: Status = Status.OK
    score: float = Field(ge=0, le=1)
    coverage: float | None = Field(default=None, ge=0, le=1)
    family: str | None = None
    """The family that must do most of the multiply-adds."""
    oracle: bool = False
    """The best one known; every environment has one."""
    defines: dict[str, int] = Field(default_factory=dict)
    """Macros of the file that get other values, by name: how one file solves many variants of a task."""


class Signature(Value):
    """The entry point that a submission exports: inputs, outputs, axes, stream."""

    tensors: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    axes: tuple[str, ...]

    def declaration(self, entry: str = "run") -> str:
        """Return the exact C++ declaration, without a semicolon."""
        parameters = []
        for tensor in self.tensors:
            qualifier = "const " if tensor.name in self.inputs else ""
            parameters.append(f"{qualifier}{_CPP_TYPE[tensor.dtype]}* {tensor.name}")
        parameters += [f"int {axis}" for axis in self.axes]
        return f'extern "C" void {entry}({", ".join(parameters)}, cudaStream_t stream)'


class Task(Value):
    """An operator to be written: everything in `task.toml`, plus its folder."""

    name: str
    revision: int = Field(ge=1)
    title: str
    summary: str
    inputs: tuple[Tensor, ...] = Field(min_length=1)
    outputs: tuple[Tensor, ...] = Field(min_length=1)
    axes: dict[str, Axis]
    """In the order in which `run` takes them."""
    independent: tuple[str, ...] = ()
    """Axes along which outputs depend on the same places of the inputs alone: a part of them can be computed apart."""
    counts: Counts
    budget: Budget
    workloads: dict[str, Workload]
    """`hardware` is timed, `emulation` is judged on the CPU, `schedules` runs under adversarial schedules."""
    solutions: dict[str, tuple[Solution, ...]] = Field(default_factory=dict)
    """By architecture; never shown to an agent."""
    examples: dict[str, tuple[Solution, ...]] = Field(default_factory=dict)
    """Teaching kernels by architecture, broken on purpose."""
    variant: str = BASE
    """Which variant of the operator this is (`ptxgym.variants`)."""
    unused: tuple[Tensor, ...] = ()
    """Inputs of the operator that a variant does without, since no output that it asks for depends on them. The
    reference sees zeros there."""
    settings: dict[str, bool | str] = Field(default_factory=dict)
    """What `with_settings` of `reference.py` and `baselines.py` are called with, where a variant needs that."""
    folder: Path = Field(exclude=True)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        tensors = (*self.inputs, *self.outputs)
        names = [tensor.name for tensor in tensors] + list(self.axes) + ["stream"]
        if odd := [tensor.name for tensor in self.outputs if tensor.derived]:
            raise ValueError(f"only inputs can be derived, not the outputs {', '.join(odd)}")
        if all(tensor.derived for tensor in self.inputs):
            raise ValueError("at least one input must be drawn, not derived")
        if doubles := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"argument names must differ; repeated: {', '.join(sorted(doubles))}")
        for tensor in tensors:
            if strange := set(tensor.shape) - set(self.axes):
                raise ValueError(f"tensor {tensor.name}: shape uses unknown axes {', '.join(sorted(strange))}")
        if strange := set(self.independent) - set(self.axes):
            raise ValueError(f"independent names unknown axes {', '.join(sorted(strange))}")
        for label, text in self._expressions().items():
            if strange := names_in(text) - set(self.axes):
                raise ValueError(f"{label}: {text!r} uses unknown axes {', '.join(sorted(strange))}")
        for required in ("emulation", "schedules"):
            if required not in self.workloads:
                raise ValueError(f"workloads.{required} is missing")
        for name, workload in self.workloads.items():
            for shape in (workload.axes, *workload.hidden):
                if problem := self.shape_problem(shape):
                    raise ValueError(f"workloads.{name}: {problem}")
        for arch, kernels in (*self.solutions.items(), *self.examples.items()):
            if arch not in ARCHITECTURES:
                raise ValueError(content.unknown("architecture", arch, ARCHITECTURES))
            if missing := [kernel.file for kernel in kernels if Path(kernel.file).is_absolute()]:
                raise ValueError(f"solution files must be relative to the task's folder: {', '.join(missing)}")
        return self

    @property
    def label(self) -> str:
        """What names the task with its variant, such as `gemm` and `gemm/nn-bias`."""
        return self.name if self.variant == BASE else f"{self.name}/{self.variant}"

    def _expressions(self) -> dict[str, str]:
        found = {f"counts.{key}": text for key, text in self.counts.model_dump().items()}
        found["budget.warp_instructions"] = self.budget.warp_instructions
        return found

    def shape_problem(self, axes: Axes) -> str | None:
        """Return why `axes` breaks the task's contract, or None."""
        if set(axes) != set(self.axes):
            return f"axes must be {', '.join(self.axes)}, found {', '.join(axes)}"
        for name, value in axes.items():
            if problem := self.axes[name].problem(value):
                return f"{name}={value} {problem}"
        return None

    @property
    def signature(self) -> Signature:
        """The entry point that a submission exports."""
        return Signature(
            tensors=(*self.inputs, *self.outputs),
            inputs=tuple(tensor.name for tensor in self.inputs),
            axes=tuple(self.axes),
        )

    def workload(self, name: str) -> Workload:
        """Return the workload `name`.

        Raises:
            UnknownNameError: if the task has none of that name; suggests the nearest.
        """
        if name not in self.workloads:
            raise UnknownNameError(content.unknown(f"workload of task {self.name}", name, self.workloads))
        return self.workloads[name]

    def sizes_bytes(self, axes: Axes) -> dict[str, int]:
        """Return the size in bytes of every input and output."""
        return {tensor.name: tensor.size_bytes(axes) for tensor in (*self.inputs, *self.outputs)}

    def required_multiply_adds(self, axes: Axes) -> int:
        """Return the multiply-adds that the operator demands under `axes`."""
        return evaluate(self.counts.multiply_adds, axes)

    def flops(self, axes: Axes) -> int:
        """Return the floating-point operations that the operator takes under `axes`."""
        return evaluate(self.counts.flops, axes)

    def moved_bytes(self, axes: Axes) -> int:
        """Return the bytes that must cross the memory bus at least once under `axes`."""
        return evaluate(self.counts.bytes, axes)

    def warp_instruction_budget(self, axes: Axes) -> int:
        """Return the warp instructions that the emulator allows under `axes`."""
        return evaluate(self.budget.warp_instructions, axes)

    def source(self, solution: Solution) -> str:
        """Return the text of a solution or example, with the values of its `defines`.

        Raises:
            ContentError: if the file is missing (wheels carry no solutions), or does not define one of them once.
        """
        path = self.folder / solution.file
        try:
            return _with_defines(path, path.read_text(encoding="utf-8"), solution.defines)
        except OSError as error:
            raise ContentError(
                f"task {self.name} has no file {solution.file} here ({error.strerror}): an installed wheel carries no "
                "kernels, so that no agent finds an answer; clone the repository, install it with `pip install -e .`, "
                "and run the command again"
            ) from error

    def reference(self) -> ReferenceModule:
        """Load `reference.py` of the task's folder.

        Raises:
            ContentError: if it is missing or lacks a function.
        """
        return load_reference(
            self.folder / "reference.py", self.settings, derives=any(tensor.derived for tensor in self.inputs)
        )

    def baselines(self) -> BaselineModule:
        """Load `baselines.py` of the task's folder: vendor libraries, imported when called.

        Raises:
            ContentError: if it is missing.
        """
        return load_baselines(self.folder / "baselines.py", self.settings)


def expected(task: Task, arch: str) -> tuple[Solution, ...]:
    """Return the proven solutions of `task` on `arch` with the verdicts that they must get, oracle last.

    Raises:
        UsageError: if the task has none for that architecture.
    """
    load_arch(arch)
    if not task.solutions.get(arch):
        raise UsageError(f"task {task.name} has no solutions for {arch}; add them under [[solutions.{arch}]]")
    return tuple(sorted(task.solutions[arch], key=lambda solution: solution.oracle))


def oracle(task: Task, arch: str) -> Solution:
    """Return the best solution of `task` on `arch`.

    Raises:
        UsageError: if none is marked as oracle.
    """
    last = expected(task, arch)[-1]
    if not last.oracle:
        raise UsageError(f"task {task.name} marks no solution for {arch} with `oracle = true`")
    return last


def task_sha256(task: Task) -> str:
    """Return what names a task with all that it says."""
    return hashlib.sha256(task.model_dump_json().encode()).hexdigest()


def load_task(name: str) -> Task:
    """Load the task `name` from the content folders.

    Raises:
        UnknownNameError: if there is none; suggests the nearest.
        ContentError: if its `task.toml` is malformed.
    """
    path = content.locate("tasks", name)
    task = _task(path, path.stat().st_mtime_ns)
    if task.name != name:
        raise ContentError(f"{path}: name: must equal the folder's name {name!r}, found {task.name!r}")
    return task


@functools.lru_cache(maxsize=64)
def _task(path: Path, _mtime_ns: int) -> Task:
    return content.load(path, Task, folder=path.parent)


def _with_defines(path: Path, text: str, defines: dict[str, int]) -> str:
    """Return `text` with other values in its lines `#define <name> <value>`."""
    for name, value in defines.items():
        line = re.compile(rf"^(#define {re.escape(name)}) \S+", re.MULTILINE)
        if (found := len(line.findall(text))) != 1:
            raise ContentError(f"{path}: must have one line `#define {name} <value>`, found {found}")
        text = line.sub(rf"\1 {value}", text)
    return text
