"""`python -m ptxgym.cluster.gpu_probe GPU`: is the GPU well? Status 0, or one line that says what to do."""

from __future__ import annotations

import json
import sys

from ptxgym.device.cuda.gpu import Gpu
from ptxgym.device.cuda.health import Health
from ptxgym.device.cuda.lock import DeviceLock
from ptxgym.errors import InfrastructureError


def main(description: str) -> int:
    """Try the GPU that a JSON object of `Gpu` describes, beside others but in nobody's race."""
    fields = json.loads(description)
    gpu = Gpu(**{**fields, "cc": tuple(fields["cc"])})
    try:
        with DeviceLock(gpu.uuid).shared(long=True):
            Health(gpu, _adds_up).check()
    except InfrastructureError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _adds_up() -> bool:
    """Multiply matrices of small integers, which has one right answer."""
    import cupy

    ones = cupy.ones((1024, 1024), dtype=cupy.float32)
    return bool((ones @ ones == 1024).all())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
