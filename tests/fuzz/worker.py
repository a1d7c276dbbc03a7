"""What runs a range of seeds in a process of its own, so that a crash is one line of a report.

Before each seed it prints `@ <kind> <seed>`; after it a line of JSON.
"""

from __future__ import annotations

import collections
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.check import check
from tests.fuzz.damage import survives
from tests.fuzz.generate import program
from tests.sanitize import builds

_CPU_SECONDS_PER_SEED = 60
_MEMORY_BYTES = 6 << 30


def main() -> None:
    """Run seeds `first` to `first + count` of a kind; further arguments are files of PTX to damage."""
    kind, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    modules = {path: Path(path).read_text(encoding="utf-8") for path in sys.argv[4:]}
    if "libasan" in os.environ.get("LD_PRELOAD", ""):  # `make sanitize`; shadow memory is terabytes of addresses
        builds.use(pytest.MonkeyPatch(), unconfined=False)
    else:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    executed: collections.Counter[str] = collections.Counter()
    for seed in range(first, first + count):
        _say(f"@ {kind} {seed}")
        # Its default action ends the process: also where the core does not come back.
        signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS_PER_SEED)
        told: dict[str, Any] = {"seed": seed}
        try:
            if kind == "programs":
                found, counts = check(program(seed))
                executed.update(counts)
                told |= {"outcome": "agree"} if found is None else {"outcome": found.kind, "detail": found.detail}
            else:
                told["outcome"] = survives(seed, modules)
        except Exception as error:
            told |= {"outcome": "raised", "detail": f"{type(error).__name__}: {error}"[:1000]}
        _say(json.dumps(told))
    _say(json.dumps({"executed": dict(executed)}))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
