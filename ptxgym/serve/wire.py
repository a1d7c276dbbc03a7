"""What server and client say to each other: pydantic models in JSON, and errors by name.

POST /v1/evaluations accepts, GET /v1/evaluations/<key> waits, DELETE lets go, GET /v1/service describes.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from ptxgym import errors
from ptxgym.cluster.protocol import Request
from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.model import Tier
from ptxgym.verdict import Value, Verdict

TOKEN_VARIABLE = "PTXGYM_TOKEN"
EVALUATIONS = "/v1/evaluations"
SERVICE = "/v1/service"
MAX_WAIT_S = 30.0
"""The longest that a request is held open for a verdict."""
MESSAGE_CHARACTERS = 2000
"""Of an error; what a caller wrote may be quoted in it."""


class Asked(Request):
    """An evaluation, as a client asks for it."""

    deadline_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    task_sha256: str | None = None
    """Of the task as the client knows it, so that different content is refused; not checked where it is left out."""
    asker: str = Field(default="", max_length=64)
    """Who asks, in words of his own: asking again is no second asker, and only he can let go."""


class Answer(Value):
    """An evaluation that was accepted."""

    key: str
    """Of its content and conditions: equal requests have the same."""
    conditions: str
    """Hash of the secret from which the service draws."""
    verdict: Verdict | None = None
    """None while it is being worked on."""


class Problem(Value):
    """Why there is no verdict."""

    type: str
    """An error of `ptxgym.errors`, or `RuntimeError` for a bug of the service."""
    message: str


class About(Value):
    """What a service is."""

    ptxgym: str
    tier: Tier
    epoch: int
    conditions: str
    """Hash of the secret from which it draws."""
    deadline_s: float
    """How long an evaluation is waited for where its request does not say."""
    versions: dict[str, str]
    """On what all its verdicts depend."""
    gpus: dict[str, Gpu | None]
    """By architecture the GPU that measures; None where kernels are emulated."""


STATUS: Mapping[type[Exception], int] = {
    errors.AccessDenied: 401,
    errors.DeadlineExceeded: 504,
    errors.Overloaded: 503,
    errors.ToolchainError: 502,
    errors.WorkerDied: 502,
    errors.InfrastructureError: 502,
    errors.ContentError: 422,
    errors.UnknownNameError: 422,
    errors.ResourcesMissing: 422,
    errors.UsageError: 422,
}
"""The status of each error that travels; the first that fits."""
BUG = 500
_BY_NAME = {kind.__name__: kind for kind in STATUS}


def problem(error: BaseException) -> tuple[int, Problem]:
    """Return status and body of an error; of a bug only its kind, as its words may tell what nobody should read."""
    for kind, status in STATUS.items():
        if isinstance(error, kind):
            return status, Problem(type=kind.__name__, message=str(error)[:MESSAGE_CHARACTERS])
    return BUG, Problem(
        type="RuntimeError", message=f"the service has a fault ({type(error).__name__}); its log says where"
    )


def error_of(told: Problem, where: str) -> Exception:
    """Return the error that a service has told of."""
    kind = _BY_NAME.get(told.type)
    return kind(told.message) if kind is not None else RuntimeError(f"{where}: {told.message}")
