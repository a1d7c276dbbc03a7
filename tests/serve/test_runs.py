"""Runs, sweeps and their second judgement on a service over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ptxgym.bench.recipe import Recipe
from ptxgym.bench.session import Sweep
from ptxgym.cli.reverifying import reverify_run
from ptxgym.cli.verifying import verify_envs
from ptxgym.envs import load_env
from ptxgym.errors import UsageError
from ptxgym.serve.server import Place
from ptxgym.store.reverify import reverify
from ptxgym.task import load_task
from tests.serve.test_serve import steps


@pytest.fixture
def compilerless(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler is needed where a service judges."""
    for name in ("ptxgym.bench.sweep.find_toolchain", "ptxgym.evaluator.find_toolchain"):
        monkeypatch.setattr(name, lambda: pytest.fail("no compiler is needed here"))


def recipe(address: str) -> Recipe:
    return Recipe(
        name="r", summary="", envs=("PTX-Gemm-H100",), agents=("oracle",), trajectories=1, turns=1, device=address
    )  # type: ignore[arg-type]


Restart = Callable[[int], str]


@pytest.fixture
def restart(start) -> Restart:
    """Start a server of an epoch, on the port of the one before."""
    place = Place(port=0, grace_s=0)

    def restart(epoch: int, **settings: object) -> str:
        nonlocal place
        if place.port:
            start.end()
        address, _, _ = start(place=place, epoch=epoch, **settings)
        place = replace(place, port=int(address.rpartition(":")[2]))
        return address

    return restart


def test_a_sweep_is_judged_again_once_the_service_has_another_epoch(restart, compilerless, tmp_path):
    address, folder = restart(0), tmp_path / "run"
    with pytest.raises(UsageError, match=r"--remeasure needs another .* start the server again with --epoch 1"):
        Sweep(recipe(address), folder, remeasure=True)
    assert not folder.exists()
    stored = Sweep(recipe(address), folder).play()
    assert [episode.status for episode in stored.episodes] == ["done"]
    with pytest.raises(UsageError, match="judges epoch 0, not 1: start it again with --epoch 1"):
        Sweep(recipe(address), folder, resume=True, remeasure=True).remeasure()
    assert restart(1) == address
    sweep = Sweep(recipe(address), folder, resume=True, remeasure=True)
    assert sweep.play() == stored  # nothing is left
    found = sweep.remeasure()
    assert [(each.epoch, each.verdict.provenance.conditions) for each in found.remeasured] == [(1, "epoch 1")]
    with pytest.raises(UsageError, match="judges epoch 1, not 0: start it again with --epoch 0"):
        Sweep(recipe(address), tmp_path / "other").play()
    assert not (tmp_path / "other").exists()


def test_another_secret_is_another_sweep_and_another_port_is_not(start, compilerless, tmp_path):
    first, _, _ = start()
    second, _, _ = start(journal="second", results=tmp_path / "results")
    third, _, _ = start(journal="third", results=tmp_path / "others")
    folder = tmp_path / "run"
    Sweep(recipe(first), folder).play()
    assert Sweep(recipe(second), folder, resume=True).left() == ()
    with pytest.raises(UsageError, match="the secret is another one"):
        Sweep(recipe(third), folder, resume=True)


def test_a_run_is_verified_again_by_the_service_that_judged_it(restart, compilerless, log, tmp_path, capsys):
    address, folder = restart(0), tmp_path / "run"
    Sweep(recipe(address), folder).play()
    with pytest.raises(UsageError, match="of a run that a service judged, name that by --device"):
        reverify(folder)
    assert reverify(folder, address) == () and reverify_run(folder, address)
    assert "1 kernels judged again, nothing changed" in capsys.readouterr().out
    with pytest.raises(UsageError, match="must be the address of a service or left out, not 'emulator'"):
        reverify(folder, "emulator")
    judged = steps(log)
    restart(0, results=tmp_path / "others")
    with pytest.raises(UsageError, match="draws from another secret than the run"):
        reverify(folder, address)
    restart(1)
    with pytest.raises(UsageError, match="judges epoch 1, not 0"):
        reverify(folder, address)
    assert steps(log) == judged


def test_proven_kernels_are_verified_on_a_service(start, compilerless, log, capsys):
    address, _, _ = start()
    assert not verify_envs([load_env("PTX-Gemm-H100")], address)  # the scripted workers say that all is well
    assert "instead of" in capsys.readouterr().out
    task = load_task("gemm")
    asked = {task.source(kernel).splitlines()[0] for kernel in (*task.solutions["h100"], *task.examples["h100"])}
    assert {text for kind, text in steps(log) if kind == "emulate"} == asked
