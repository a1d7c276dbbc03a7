"""The settings of the template gemm/h100/ring: which are right by a formula, and verdicts that are kept and shared."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ptxgym import pipeline, recording
from ptxgym.evaluator import Evaluator
from ptxgym.knobs.template import KnobTemplate, Setting, load_template
from ptxgym.store.lines import write_whole
from ptxgym.verdict import Provenance, Stage, Status, Verdict

TEMPLATE, TASK, ARCH, SECRET = "gemm/h100/ring", "gemm", "h100", "ppo-knobs"
PARAMETERS = ("kStages", "kLag", "kArrivals", "kExpect", "kStep", "kStride", "kMode")
"""Knobs that reach the kernel as parameters, in the order of the kernel's `Schedule`."""
SLOT_K_BYTES = 128
"""Of a row of either operand in a slot."""


# ---- which settings are right, by what the template says


def slot_bytes(setting: Setting) -> int:
    return (int(setting["kTileM"]) + int(setting["kTileN"])) * SLOT_K_BYTES


def compiles(setting: Setting) -> bool:
    """Rows, registers and shared memory."""
    rows = int(setting["kTileM"]) // int(setting["kConsumers"])
    sums = rows // 64 * int(setting["kTileN"]) // 2
    shared_bytes = int(setting["kStages"]) * slot_bytes(setting) + 1024 + 128
    return rows % 64 == 0 and sums <= 192 and shared_bytes <= 227 * 1024


def is_right(setting: Setting) -> bool:
    return (
        compiles(setting)
        and setting["kMode"] == {128: 1, 64: 2}[int(setting["kSpan"])]  # descriptors name TMA's swizzle
        and int(setting["kStride"]) * 16 == 8 * int(setting["kSpan"])  # eight rows of a span make an atom
        and setting["kStep"] == 2  # 16 columns of BF16 are 32 bytes
        and setting["kExpect"] == slot_bytes(setting)
        and setting["kArrivals"] == setting["kConsumers"]  # one arrival of each
        and not (setting["kPending"] == 1 and setting["kLag"] == 0)  # or slots are released while they are read
    )


def settings(template: KnobTemplate) -> Iterator[Setting]:
    return (template.setting(template.action(index)) for index in range(template.size))


# ---- verdicts, kept and shared


class Kept(Evaluator):
    """Keeps verdicts in a folder by the hash of the text: for every seed, and for a run that goes on."""

    def __init__(self, folder: Path, device: str, judged: Mapping[str, Verdict] | None = None) -> None:
        super().__init__(device, secret=SECRET, tier="rl" if device == "cuda" else "standard")
        self._folder = folder
        self._template = load_template(TEMPLATE)
        self._verdicts = dict(judged or {})
        """By the hash of the text; those of another machine, and those that were read."""
        folder.mkdir(parents=True, exist_ok=True)

    def evaluate(self, text: str, *asked: Any, **more: Any) -> Verdict:
        key = hashlib.sha256(text.encode()).hexdigest()
        if key not in self._verdicts:
            judged = self._kept(assertions_alike(self._template, text), *asked, **more)
            own = judged.provenance.model_copy(update={"source_sha256": key})
            self._verdicts[key] = judged.model_copy(update={"provenance": own})
        return self._verdicts[key]

    def _kept(self, text: str, *asked: Any, **more: Any) -> Verdict:
        path = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
        if not path.exists():
            write_whole(path, super().evaluate(text, *asked, **more).model_dump_json())
        return Verdict.model_validate_json(path.read_bytes())


def foretell(setting: Setting) -> tuple[Stage, Status, float]:
    """How far a setting comes, and its score, by rules: what of a verdict decides rewards under one turn an episode."""
    if not compiles(setting):
        return Stage.BUILD, Status.COMPILE_ERROR, 0.0
    if setting["kExpect"] != slot_bytes(setting) or setting["kArrivals"] != setting["kConsumers"]:
        return Stage.EXECUTE, Status.HANG, 0.0
    span = int(setting["kSpan"])
    if int(setting["kStride"]) * 16 > 8 * span:
        return Stage.EXECUTE, Status.RUNTIME_FAULT, 0.0  # the last rows lie outside of shared memory
    if setting["kMode"] != {128: 1, 64: 2}[span] or setting["kStep"] == 4:
        return Stage.JUDGE, Status.WRONG_OUTPUT, 0.0  # with findings that are errors
    if setting["kPending"] == 1 and setting["kLag"] == 0:
        return Stage.JUDGE, Status.HAZARD, 0.0
    return (Stage.JUDGE, Status.OK, 0.5) if is_right(setting) else (Stage.JUDGE, Status.WRONG_OUTPUT, 0.05)


class Foretold(Kept):
    """Takes verdicts that are kept, or of another machine, and foretells all others."""

    def _kept(self, text: str, *asked: Any, **more: Any) -> Verdict:
        if (self._folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json").exists():
            return super()._kept(text)
        stage, status, score = foretell(knobs_of(self._template, text))
        of = Provenance(ptxgym="0", task=TASK, task_revision=1, arch=ARCH, source_sha256="")
        return Verdict(stage=stage, status=status, code="foretold", message="", score=score, provenance=of)


_LINE = r"^constexpr int {} = (\d+);$"


def read_knob(text: str, name: str) -> int:
    found = re.search(_LINE.format(name), text, re.MULTILINE)
    assert found is not None, name
    return int(found[1])


def with_knobs(text: str, values: Mapping[str, int]) -> str:
    for name, value in values.items():
        text = re.sub(_LINE.format(name), f"constexpr int {name} = {value};", text, flags=re.MULTILINE)
    return text


def knobs_of(template: KnobTemplate, text: str) -> Setting:
    return {knob.name: read_knob(text, knob.name) for knob in template.knobs}


def assertions_alike(template: KnobTemplate, text: str) -> str:
    """The text itself; of those whose assertions fail alike, by tile, consumers and stages, one for all."""
    if compiles(knobs_of(template, text)):
        return text
    asserted = ("kTileM", "kTileN", "kConsumers", "kStages")
    return with_knobs(text, {k.name: int(k.choices[0]) for k in template.knobs if k.name not in asserted})


@contextmanager
def shared_builds(template: KnobTemplate) -> Iterator[None]:
    """Compile one text of those that share device code, for evaluations one after the other in this process."""
    whole_build, whole_record = pipeline.build, recording.record
    common = {name: int(knob.choices[0]) for knob in template.knobs if (name := knob.name) in PARAMETERS}
    asked: list[Setting] = [{}]

    def build(text: str, **more: Any) -> Any:
        asked[0] = knobs_of(template, text)
        return whole_build(with_knobs(text, common) if compiles(asked[0]) else text, **more)

    def record(*of: Any, **more: Any) -> Any:
        plan = whole_record(*of, **more)
        return plan if not hasattr(plan, "operations") else _scheduled(plan, asked[0])

    pipeline.build, recording.record = build, record
    try:
        yield
    finally:
        pipeline.build, recording.record = whole_build, whole_record


def _scheduled(plan: Any, setting: Setting) -> Any:
    """The plan with the parameters of `setting`, as its own host code would have asked for them."""
    (launch,) = plan.operations
    (function,) = plan.functions
    smem_bytes = int(setting["kStages"]) * slot_bytes(setting) + 1024
    schedule = launch.params[2].model_copy(
        update={"data": struct.pack("<7I", *(int(setting[name]) for name in PARAMETERS)).hex()}
    )
    launch = launch.model_copy(
        update={
            "dynamic_smem_bytes": smem_bytes,
            "params": (*launch.params[:2], schedule, *launch.params[3:]),
        }
    )
    function = function.model_copy(update={"max_dynamic_smem_bytes": smem_bytes})
    return plan.model_copy(update={"operations": (launch,), "functions": (function,)})


def comparable(verdict: Verdict) -> dict[str, Any]:
    """What does not depend on which text of those with the same device code was compiled."""
    whole = verdict.deterministic()
    del whole["provenance"], whole["plan"]
    return whole
