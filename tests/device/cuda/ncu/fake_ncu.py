#!/usr/bin/env python3
"""Plays Nsight Compute: runs its target, prints and exports what `fake.json` beside it says."""

# ruff: noqa: T201

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

said = json.loads((Path(__file__).parent / "fake.json").read_text())
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print(f"NVIDIA (R) Nsight Compute Command Line Profiler\nVersion {said['version']} (build 1) (public-release)")
    sys.exit(0)
(Path(__file__).parent / "arguments.json").write_text(json.dumps({"argv": arguments, "env": dict(os.environ)}))
if said["early"]:
    print(said["early"], flush=True)
    sys.exit(1)
place = arguments.index("--export")
target = subprocess.Popen(arguments[place + 2 :], env={**os.environ, **said["env"]})
code = target.wait()
print(said["late"], flush=True)
if said["report"]:
    shutil.copy(said["report"], arguments[place + 1])
sys.exit(code)
