"""The recipes of `configs/cluster`, by Ray's own schema and by the shell's."""

from __future__ import annotations

import copy
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "configs" / "cluster"


def read(name: str) -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_ray_accepts_a_recipe(name):
    pytest.importorskip("ray", reason='needs Ray: pip install "ptxgym[cluster]"')
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(copy.deepcopy(read(name)))
    validate_config(prepared)
    least = sum(kind.get("min_workers", 0) for kind in prepared["available_node_types"].values())
    assert 1 <= least <= prepared["max_workers"]
    with pytest.raises(Exception, match="'workers' was unexpected"):
        validate_config(prepared | {"workers": 3})


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_a_recipe_installs_and_starts_what_there_is(name):
    from importlib.metadata import metadata

    recipe = read(name)
    extras = set(metadata("ptxgym").get_all("Provides-Extra") or [])
    asked = re.findall(r"extras=([\w,]+)", " ".join(recipe["setup_commands"]))
    assert len(asked) == 2 and {extra for each in asked for extra in each.split(",")} <= extras
    commands = [*recipe["setup_commands"], *recipe["head_start_ray_commands"], *recipe["worker_start_ray_commands"]]
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True)
    assert "~/.ray/auth_token" in recipe["file_mounts"]


def test_accelerators_of_a_recipe_are_spelled_as_ray_and_the_service_spell_them():
    accelerators = pytest.importorskip("ray.util.accelerators.accelerators")
    from ptxgym.cluster.fleet import ACCELERATORS

    kinds = read("aws.yaml")["available_node_types"].values()
    named = [key.removeprefix("accelerator_type:") for kind in kinds for key in kind["resources"] if ":" in key]
    known = {value for name, value in vars(accelerators).items() if name.startswith("NVIDIA")}
    assert named == ["H100", "B200"] and set(named) <= known & set(ACCELERATORS)


def test_the_script_for_slurm_is_one():
    subprocess.run(["bash", "-n", FOLDER / "slurm.sh"], check=True)
