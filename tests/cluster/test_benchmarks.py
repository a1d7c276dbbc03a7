import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_campaign_on_gpus_can_be_rehearsed_without_one(tmp_path):
    out = tmp_path / "report.json"
    command = [sys.executable, "benchmarks/two_gpus.py", "--rehearse", "--gpus", "1", "--kernels", "24", "--out", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    assert report["rehearsal"] and report["all"]["statuses"] == {"ok": 24}
    assert report["killed"]["counters"]["deaths"] == 1 and 1 <= report["killed"]["repeated"] <= 8
