"""Stands for wandb where a test needs it to fail: `FAKE_WANDB` says at what, and how.

`init:raise`, `log:hang`, `log:full`, `log:exit`, `finish:hang` …; empty: all goes well. What was called goes into the
file that `FAKE_WANDB_LOG` names, a JSON line each.
"""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any


def _called(what: str, **told: Any) -> None:
    with Path(os.environ["FAKE_WANDB_LOG"]).open("a") as file:
        file.write(json.dumps({"what": what, **told}) + "\n")
    at, _, how = os.environ.get("FAKE_WANDB", "").partition(":")
    online = os.environ.get("WANDB_MODE") != "offline"
    if at == what or (at == f"online-{what}" and online):
        if how == "raise":
            raise RuntimeError("no such run")
        if how == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if how == "exit":
            os._exit(7)
        while how == "hang":
            time.sleep(1)


class Settings:
    """Takes any of these."""

    model_fields = ("console", "silent", "init_timeout")

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


class _Config(dict[str, Any]):
    def update(self, values: Any, allow_val_change: bool = False) -> None:  # type: ignore[override]
        super().update(values)
        _called("config", values=values)


class _Run:
    resumed = False
    url = None

    def __init__(self) -> None:
        self.config = _Config()
        self.dir = "offline-run/files"

    def define_metric(self, name: str, **how: Any) -> None:
        _called("define_metric", name=name, how=how)

    def log(self, values: dict[str, Any], step: int) -> None:
        _called("log", step=step, values={name: str(value) for name, value in values.items()})

    def log_artifact(self, artifact: Artifact) -> None:
        _called("artifact", name=artifact.name, files=artifact.files)

    def finish(self, exit_code: int) -> None:
        _called("finish", exit_code=exit_code)


class Table:
    """Rows."""

    def __init__(self, columns: list[str], allow_mixed_types: bool, log_mode: str) -> None:
        self.columns = columns
        self.data: list[Any] = []

    def add_data(self, *cells: Any) -> None:
        self.data.append(cells)

    def __str__(self) -> str:
        return f"table of {len(self.data)}"


class Artifact:
    """Files."""

    def __init__(self, name: str, type: str, metadata: dict[str, Any]) -> None:
        self.name = name
        self.files: list[str] = []

    def add_file(self, path: str, name: str) -> None:
        self.files.append(name)


def init(**settings: Any) -> _Run:
    """Begin."""
    told = {name: value for name, value in settings.items() if name != "settings"}
    _called("init", told=told, environ=dict(os.environ))
    return _Run()
