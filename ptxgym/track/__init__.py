"""What a run tells while it goes on: scalars, tables, artefacts, the machine. JSONL always; wandb as an extra."""

from __future__ import annotations

from ptxgym.track.tracker import JsonlTracker, Tracker, TrackingWarning, WandbTracker, open_tracker

__all__ = ["JsonlTracker", "Tracker", "TrackingWarning", "WandbTracker", "open_tracker"]
