"""PPO with env runners on two nodes of a Ray cluster, all on this machine; a service of scripted workers judges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.knobs.journal import read_journals
from ptxgym.train import recorder, runner
from ptxgym.train.rllib import JOURNALS, ppo
from ptxgym.train.run import CHECKPOINTS
from tests.serve.conftest import log, start  # noqa: F401  (fixtures)
from tests.train.test_rllib import QUICK, quiet, recipe, rllib

pytestmark = [rllib, quiet]
TWO_RUNNERS = {
    **QUICK, "num_env_runners": 2, "num_cpus_per_env_runner": 1, "delay_between_env_runner_restarts_s": 0,
    "env_runner_health_probe_timeout_s": 2, "env_runner_restore_timeout_s": 5,
}  # fmt: skip


@pytest.fixture
def cluster(log: Path) -> Iterator[Any]:  # noqa: F811
    """A head without CPUs for env runners, where the run begins, and two nodes with one each."""
    import ray

    from tests.cluster.clusters import add_node, new_cluster

    made = new_cluster()
    for _ in range(2):
        add_node(made, num_cpus=1)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def writers(folder: Path) -> dict[str, set[str]]:
    """Which processes have files of a folder open: by file, what they are called."""
    found: dict[str, set[str]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "cmdline").read_bytes().split(b"\0")[0].decode()
            files = [Path(link.readlink()) for link in (process / "fd").iterdir()]
        except OSError:
            continue
        for file in files:
            if file.parent == folder:
                found.setdefault(file.name, set()).add(name)
    return found


def test_what_other_nodes_evaluate_is_kept_by_the_run(
    cluster: Any,
    start: Callable[..., Any],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, _, _ = start()
    run = tmp_path / "run"
    seen: list[dict[str, set[str]]] = []

    def look(step: int, values: Mapping[str, float]) -> None:
        seen.append(writers(run / JOURNALS))

    asked = recipe(tmp_path, device=address, trainer=TWO_RUNNERS)
    done = ppo(asked, run, logs=[look])
    assert {path.name for path in (run / JOURNALS).iterdir()} == {"runner-1.jsonl", "runner-2.jsonl"}
    assert done.evaluations == len(read_journals(run / JOURNALS)) > 1 and done.best.score == 0.5
    assert seen[-1].keys() == {"runner-1.jsonl", "runner-2.jsonl"}
    assert all(name.startswith("ray::Recorder") for names in seen[-1].values() for name in names), seen[-1]

    monkeypatch.setattr(recorder, "_identity", lambda folder: (0, 0))  # as another disk's folder would have it
    with pytest.raises(UsageError, match="start the run on a node of the cluster"):
        ppo(asked, tmp_path / "elsewhere")


def test_env_runners_that_fail_for_good_end_the_run_which_keeps_its_checkpoint(
    cluster: Any,
    start: Callable[..., Any],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    monkeypatch.setattr(runner, "PAUSES_S", ())
    address, _, _ = start()
    run = tmp_path / "run"

    def gone(step: int, values: Mapping[str, float]) -> None:
        for actor in ray.util.list_named_actors(all_namespaces=True) if step == 2 else ():
            if actor["namespace"] == recorder.NAMESPACE:
                ray.kill(ray.get_actor(**actor))

    with pytest.raises(InfrastructureError, match="no env runner has sampled a turn in 3 iterations in a row"):
        ppo(recipe(tmp_path, device=address, iterations=99, trainer=TWO_RUNNERS), run, logs=[gone])
    (checkpoint,) = (run / CHECKPOINTS).iterdir()
    assert (checkpoint / "trainer_state.json").is_file() and checkpoint.name == "checkpoint-5"
    assert len(read_journals(run / JOURNALS)) > 1
