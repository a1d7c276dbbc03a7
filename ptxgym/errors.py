"""Exceptions of ptxgym.

A bad submission is never an exception: it is a `Verdict`. What is raised is either a mistake of the caller
(`UsageError` and its kin) or a failure of the machine (`InfrastructureError`), which an environment turns into a
truncated step.
"""


class PtxgymError(Exception):
    """Root of everything that ptxgym raises on purpose."""


class UsageError(PtxgymError, ValueError):
    """Raised when a caller passes something that ptxgym cannot accept; the message names the value and the way out."""


class ContentError(UsageError):
    """Raised when a file under `tasks/`, `envs/`, `rewards/` … is missing or wrong; names file, key, expectation."""


class UnknownNameError(UsageError):
    """Raised when an id of a task, environment, reward or workload is not known; suggests the nearest one."""


class NotApplicableError(PtxgymError):
    """Raised by a task's baseline for a variant or a shape that its library does not serve; says which it serves."""


class InfrastructureError(PtxgymError):
    """Raised when the machine, not the submission, failed: a full disk, a dead worker, a missing tool."""


class ToolchainError(InfrastructureError):
    """Raised when no usable CUDA compiler or host compiler is found; the message says what to install."""


class WorkerDied(InfrastructureError):
    """Raised when an evaluation process ended without an answer; the message says where its reproducer lies."""


class DeadlineExceeded(InfrastructureError):
    """Raised when an evaluation was not finished by its asker's deadline; says nothing about the submission."""


class Overloaded(InfrastructureError):
    """Raised when a service has no room for another evaluation; try again later, or ask for less at a time."""


class ResourcesMissing(UsageError):
    """Raised when a cluster or machine lacks what a service was asked to use; names what is there."""


class AccessDenied(UsageError):
    """Raised when a service does not know the caller's token; the message says where the token is to be put."""
