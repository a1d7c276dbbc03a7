"""Variants of a task to train on: combinations of traits, read from `tasks/<name>/variants.toml`.

A trait is one difference from `task.toml`: another layout, a head dimension, an epilogue, fewer outputs. A variant is
the traits that its name joins, such as `nn-bias`, in the order in which the file lists them. Each variant that the file
names, in `train` or `eval`, is a task like any other: derived here, it goes through prompt, build, judge and caches
without a special case. The task itself is the variant `base`, which is held out for evaluation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, ValidationError, model_validator

from ptxgym import content
from ptxgym.errors import ContentError, UnknownNameError, UsageError
from ptxgym.task import BASE, ITEM_BYTES, Axis, DType, Expression, Solution, Task, Tensor, Workload, load_task
from ptxgym.verdict import Status, Value

Split = Literal["train", "eval"]
SPLITS: tuple[Split, ...] = get_args(Split)
FILE = "variants.toml"


class Trait(Value):
    """One difference from the task; what is not named stays as it is."""

    summary: str
    difficulty: int = 0
    """What it adds to that of the task; below 0 it makes things easier."""
    replace: dict[str, str] = Field(default_factory=dict)
    """Texts of title or summary, each found there once, and what stands in their place."""
    append: str = ""
    """A line at the end of the summary."""
    shapes: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Tensors whose axes lie in another order in memory."""
    dtypes: dict[str, DType] = Field(default_factory=dict)
    """Tensors of another type."""
    inputs: tuple[Tensor, ...] = ()
    """Inputs beside those of the task; `run` takes them after these."""
    unused: tuple[str, ...] = ()
    """Inputs that no wanted output depends on; `run` does not take them."""
    outputs: tuple[str, ...] = ()
    """The outputs that are wanted, where that is not all."""
    axes: dict[str, Axis] = Field(default_factory=dict)
    fixed: dict[str, int] = Field(default_factory=dict)
    """Axes with a single size, in the contract and in every workload."""
    counts: dict[Literal["multiply_adds", "flops"], Expression] = Field(default_factory=dict)
    workloads: dict[str, Workload] = Field(default_factory=dict)
    settings: dict[str, bool | str] = Field(default_factory=dict)
    """For `with_settings` of `reference.py` and `baselines.py`."""
    defines: dict[str, int] = Field(default_factory=dict)
    """For the naive kernel."""


class Naive(Value):
    """The kernel that solves every variant of a task, by other values of its macros."""

    file: str
    defines: dict[str, int] = Field(default_factory=dict)
    """What the task itself sets."""


class Variant(Value):
    """A named combination of traits."""

    name: str
    split: Split
    traits: tuple[str, ...]
    difficulty: int
    """The task's and that of its traits: an order for a curriculum, larger is harder; an estimate, not measured."""


class Variants(Value):
    """What `variants.toml` holds."""

    difficulty: int = 0
    """Of the task itself, compared with other tasks."""
    naive: Naive
    train: tuple[str, ...]
    eval: tuple[str, ...] = ()
    """Held out, beside the task itself."""
    traits: dict[str, Trait] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if odd := [name for name in self.traits if "-" in name or name == BASE]:
            raise ValueError(f"a trait's name must have no '-' and not be {BASE!r}: {', '.join(odd)}")
        names = (*self.train, *self.eval)
        if doubles := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"listed twice, in train or eval: {', '.join(doubles)}")
        order = list(self.traits)
        for name in names:
            traits = name.split("-")
            if strange := [trait for trait in traits if trait not in self.traits]:
                raise ValueError(f"variant {name!r}: {content.unknown('trait', strange[0], self.traits)}")
            if (ordered := "-".join(sorted(set(traits), key=order.index))) != name:
                raise ValueError(f"variant {name!r}: its traits come in the order of the file: {ordered!r}")
        return self

    def all(self) -> tuple[Variant, ...]:
        """Return every variant, `base` first, then those to train on."""
        base = Variant(name=BASE, split="eval", traits=(), difficulty=self.difficulty)
        return (base, *self._of("train", self.train), *self._of("eval", self.eval))

    def _of(self, split: Split, names: tuple[str, ...]) -> Iterator[Variant]:
        for name in names:
            traits = tuple(name.split("-"))
            harder = sum(self.traits[trait].difficulty for trait in traits)
            yield Variant(name=name, split=split, traits=traits, difficulty=self.difficulty + harder)


def variants_of(task: Task) -> tuple[Variant, ...]:
    """Return the variants of `task`, `base` first; `base` alone where the task's folder has no `variants.toml`.

    Raises:
        ContentError: if the file is malformed.
    """
    found = _read(task)
    return (Variant(name=BASE, split="eval", traits=(), difficulty=0),) if found is None else found.all()


def traits_of(task: Task) -> dict[str, Trait]:
    """Return the traits of which the variants of `task` are made, by name.

    Raises:
        ContentError: if the file is malformed.
    """
    found = _read(task)
    return {} if found is None else found.traits


def load_variant(task: Task | str, name: str = BASE) -> Task:
    """Return the variant `name` of a task as a task of its own.

    Args:
        task: The task itself, or its name.
        name: `base` is the task as it is.

    Raises:
        UnknownNameError: if the task, or a variant of that name, does not exist; suggests the nearest.
        ContentError: if a file is malformed, or two traits of the variant contradict each other.
    """
    whole = load_task(task) if isinstance(task, str) else task
    if name == whole.variant:
        return whole
    if whole.variant != BASE:
        raise UnknownNameError(f"{whole.label} is a variant already; variants are made of the task {whole.name!r}")
    known = variants_of(whole)
    chosen = next((variant for variant in known if variant.name == name), None)
    if chosen is None:
        names = [variant.name for variant in known]
        raise UnknownNameError(f"{content.unknown(f'variant of task {whole.name}', name, names)}{_HINT}")
    file = _read(whole)
    assert file is not None  # or only `base` were known
    return _derived(whole.folder / FILE, whole, file, chosen)


def asked_for(task: Task | str, variant: str | None) -> Task:
    """Return the task that a caller means: a name alone is the task as it is given, a `Task` alone is itself.

    Raises:
        UsageError: if `task` is neither.
        UnknownNameError, ContentError: as `load_variant`.
    """
    if not isinstance(task, str | Task):
        raise UsageError(f"task must be a Task or the name of one, not {task!r}; see `ptxgym list`")
    return task if isinstance(task, Task) and variant is None else load_variant(task, variant or BASE)


_HINT = " (`ptxgym list --variants` shows all)"


def _read(task: Task) -> Variants | None:
    path = task.folder / FILE
    return _variants(path, path.stat().st_mtime_ns) if path.is_file() else None


@functools.lru_cache(maxsize=64)
def _variants(path: Path, _mtime_ns: int) -> Variants:
    return content.load(path, Variants)


def _derived(path: Path, task: Task, file: Variants, variant: Variant) -> Task:
    """Return `task` with the traits of `variant`."""
    joined = _Joined(path, variant.name, {name: file.traits[name] for name in variant.traits})
    title, summary = joined.texts(task.title, task.summary)
    inputs, unused, outputs = joined.tensors(task)
    fixed = joined.merged("fixed")
    solution = Solution(
        file=file.naive.file,
        summary="the naive kernel of all variants",
        status=Status.OK,
        score=0.20,
        coverage=0.0,
        family="fma",
        defines={**file.naive.defines, **joined.merged("defines")},
    )
    changes = {
        "title": title,
        "summary": summary,
        "inputs": inputs,
        "outputs": outputs,
        "unused": unused,
        "axes": _fixed_axes({**task.axes, **joined.merged("axes")}, fixed),
        "counts": {**task.counts.model_dump(), **joined.merged("counts"), "bytes": _bytes((*inputs, *outputs))},
        "workloads": {
            name: _fixed_sizes(workload, fixed)
            for name, workload in {**task.workloads, **joined.merged("workloads")}.items()
        },
        "settings": joined.merged("settings"),
        "solutions": dict.fromkeys(task.solutions, (solution,)),
        "examples": {},
        "variant": variant.name,
    }
    try:
        return Task.model_validate({**dict(task), **changes})
    except ValidationError as error:
        problems = "; ".join(item["msg"].removeprefix("Value error, ") for item in error.errors())
        raise ContentError(f"{path}: variant {variant.name!r}: {problems}") from error


class _Joined:
    """The traits of one variant, of which no two may say different things about the same."""

    def __init__(self, path: Path, variant: str, traits: dict[str, Trait]) -> None:
        self._where = f"{path}: variant {variant!r}"
        self._traits = traits

    def merged(self, field: str) -> dict[str, Any]:
        """Return the values of a field by key, over all traits."""
        found: dict[str, Any] = {}
        for name, trait in self._traits.items():
            for key, value in getattr(trait, field).items():
                if found.setdefault(key, value) != value:
                    raise ContentError(f"{self._where}: traits disagree on {field}.{key}; {name!r} has {value!r}")
        return found

    def texts(self, title: str, summary: str) -> tuple[str, str]:
        """Return title and summary after all replacements, with the appended lines."""
        for old, new in self.merged("replace").items():
            if title.count(old) + summary.count(old) != 1:
                raise ContentError(f"{self._where}: {old!r} must occur once in title and summary, to be replaced")
            title, summary = title.replace(old, new), summary.replace(old, new)
        lines = [trait.append for trait in self._traits.values() if trait.append]
        return title, "\n".join((summary.rstrip("\n"), *lines))

    def tensors(self, task: Task) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the inputs that `run` takes, those of the task that it does not, and the outputs."""
        added = [tensor for trait in self._traits.values() for tensor in trait.inputs]
        unused = {name for trait in self._traits.values() for name in trait.unused}
        wanted = [set(trait.outputs) for trait in self._traits.values() if trait.outputs]
        if len(wanted) > 1:
            raise ContentError(f"{self._where}: more than one trait says which outputs are wanted")
        known = {tensor.name for tensor in (*task.inputs, *task.outputs, *added)}
        named = unused.union(*wanted, self.merged("shapes"), self.merged("dtypes"))
        if strange := sorted(named - known):
            raise ContentError(f"{self._where}: {content.unknown('tensor', strange[0], known)}")
        inputs = [self._changed(tensor) for tensor in (*task.inputs, *added)]
        outputs = [self._changed(tensor) for tensor in task.outputs]
        return (
            tuple(tensor for tensor in inputs if tensor.name not in unused),
            tuple(tensor for tensor in inputs if tensor.name in unused),
            tuple(tensor for tensor in outputs if not wanted or tensor.name in wanted[0]),
        )

    def _changed(self, tensor: Tensor) -> Tensor:
        """Return a tensor as this variant stores it; the reference sees it as the task does."""
        shape, dtype = self.merged("shapes").get(tensor.name), self.merged("dtypes").get(tensor.name)
        update = {"shape": shape, "logical": tensor.logical or tensor.shape} if shape else {}
        return tensor.model_copy(update={**update, **({"dtype": dtype} if dtype else {})})


def _fixed_axes(axes: dict[str, Axis], fixed: dict[str, int]) -> dict[str, Axis]:
    return {name: Axis(min=fixed[name], max=fixed[name]) if name in fixed else axis for name, axis in axes.items()}


def _fixed_sizes(workload: Workload, fixed: dict[str, int]) -> Workload:
    hidden = tuple(dict.fromkeys(tuple({**shape, **fixed}.items()) for shape in workload.hidden))
    return workload.model_copy(update={"axes": {**workload.axes, **fixed}, "hidden": tuple(map(dict, hidden))})


def _bytes(tensors: tuple[Tensor, ...]) -> str:
    """Return the expression of all tensors' bytes: each crosses the memory bus once."""
    return " + ".join(" * ".join((str(ITEM_BYTES[tensor.dtype]), *tensor.shape)) for tensor in tensors)
