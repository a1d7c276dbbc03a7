"""An evaluator that reads its verdict in the text, and made-up failures."""

from __future__ import annotations

from typing import Any

from ptxgym.envs import load_env
from ptxgym.evaluator import Evaluator
from ptxgym.fixit.records import FailedKernel, failure_id
from ptxgym.task import Task
from ptxgym.verdict import Status, Verdict
from tests.store.samples import verdict

ENV = "ptxgym/Gemm-H100-v1"


class Reading(Evaluator):
    """`right` in a text: it passes; `plain`: right without target instructions; `lucky`: it passes in epoch 0 only."""

    def evaluate(
        self,
        text: str,
        task: Task | str,
        arch: str = "h100",
        workload: str | None = None,
        *,
        variant: str | None = None,
    ) -> Verdict:
        passes = "right" in text or ("lucky" in text and self._epoch == 0)
        found = verdict(Status.OK if passes or "plain" in text else Status.WRONG_OUTPUT, target=passes)
        name = variant or (task.variant if isinstance(task, Task) else "base")
        provenance = found.provenance.model_copy(
            update={"conditions": f"{self._secret.decode()}-{self._epoch}", "variant": name, "arch": arch}
        )
        return found.model_copy(update={"provenance": provenance})


def failure(source: str, feedback: str = "it is wrong", **changes: Any) -> FailedKernel:
    parts: dict[str, Any] = {
        "env": ENV,
        "task": "gemm",
        "variant": "bias",
        "arch": "h100",
        "split": "train",
        "kind": "numerical",
        "code": "wrong_output",
        "turn": 1,
        "source": source,
        "feedback": feedback,
        "conditions": "run-0",
        "episode": "e",
        "run": "r",
    } | changes
    assert load_env(parts["env"]).pinned == parts["env"]
    return FailedKernel(id=failure_id(parts["env"], parts["variant"], source, feedback), **parts)
