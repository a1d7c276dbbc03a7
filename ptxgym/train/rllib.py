"""PPO over the knobs of a kernel template: RLlib's algorithm on its new API stack (EnvRunner, RLModule)."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ptxgym
from ptxgym.errors import InfrastructureError, PtxgymError, UsageError
from ptxgym.evaluator import Evaluator
from ptxgym.extras import need
from ptxgym.knobs.journal import Evaluated, read_journals
from ptxgym.knobs.template import KnobTemplate, load_template
from ptxgym.store.lines import write_whole
from ptxgym.threads import started
from ptxgym.train import runner
from ptxgym.train.recipe import PpoRecipe, check_trainer
from ptxgym.train.recorder import recording
from ptxgym.train.run import CHECKPOINTS, MODEL, Front, Log, Metrics, TrainRun

logger = logging.getLogger("ptxgym.train")

WHO, EXTRA = "training by RLlib needs", "ray"
ENV = "ptxgym-knobs"
"""As RLlib's registry knows the environment."""
JOURNALS = "evaluations"
"""A file for each env runner: a line for every setting that it evaluated for the first time."""
BEST = "best.cu"
LEARNT = ("total_loss", "policy_loss", "vf_loss", "entropy", "mean_kl_loss")
"""What is taken of the learner's results."""

STOP_LIMIT_S = 20.0
"""Longest that env runners are waited for when a run ends."""
MOST_BARREN = 3
"""Iterations in a row in which no env runner need sample a turn: lost ones are started anew."""


@dataclass(frozen=True)
class Searched:
    """What came of a run."""

    iterations: int
    evaluations: int
    """Different settings that were evaluated."""
    best: Evaluated
    """The first with the best score."""
    kernel: Path
    """The text of the best."""
    model: Path
    """The RLModule, for `RLModule.from_checkpoint`."""
    metrics: tuple[Metrics, ...]
    """All that was logged, by the sittings before as well."""


def ppo(
    recipe: PpoRecipe,
    folder: Path,
    *,
    resume: bool = False,
    logs: Sequence[Log] = (),
    evaluator: Evaluator | None = None,
) -> Searched:
    """Search the settings of a template.

    Args:
        recipe: What is searched, and how.
        folder: Of the run; new, or one to go on with.
        resume: Whether to go on from its last checkpoint.
        logs: Get what is logged, beside `metrics.jsonl`: a step is an iteration.
        evaluator: Judges, in this process; by default one for the recipe's device and tier in every env runner.

    Raises:
        UsageError: if recipe or folder do not fit, or RLlib or PyTorch is missing.
        InfrastructureError: if the folder cannot be written, or the machine fails at one episode after the other; the
            last checkpoint is then that of the last iteration.
    """
    template = load_template(recipe.template).keep(recipe.keep)
    need("torch", WHO, EXTRA)
    ray = need("ray", WHO, EXTRA)
    need("ray.rllib", WHO, EXTRA)
    sitting = uuid.uuid4().hex
    folder = folder.resolve()
    settings = {
        "template": str(Path(recipe.template).resolve()) if recipe.template.endswith(".toml") else recipe.template,
        "keep": recipe.keep,
        **recipe.env.model_dump(),
        "device": recipe.device,
        "tier": recipe.tier,
        "journals": str(folder / JOURNALS),
        "pauses_s": runner.PAUSES_S,
        "sitting": sitting,
        "recorder": "",
    }
    config = _config(recipe, settings)
    if evaluator is not None and (others := _other_processes(config)):
        raise UsageError(f"an evaluator cannot be lent to {others} env runners: num_env_runners = 0")
    front = Front(method="ppo", recipe=recipe, ptxgym=ptxgym.__version__, packages=packages())
    run = TrainRun(folder, front, resume=resume)
    if not resume:
        shutil.rmtree(folder / JOURNALS, ignore_errors=True)
    (folder / JOURNALS).mkdir(exist_ok=True)
    own = not ray.is_initialized()
    try:
        if evaluator is not None:
            runner.LENT[sitting] = evaluator
        if own:
            _start(ray, config)
        with ExitStack() as stack:
            if _other_processes(config):
                stack.enter_context(recording(ray, sitting, folder / JOURNALS))
                config = config.environment(env_config={"recorder": sitting})
            return _learn(ray, recipe, template, config, run, run.writer(tuple(logs)))
    finally:
        runner.forget(sitting)
        if own:
            ray.shutdown()


def packages() -> dict[str, str]:
    """Return the versions of what trains, as far as it is installed."""
    found = {}
    for name in ("ray", "torch", "gymnasium"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _other_processes(config: Any) -> int:
    """Return how many env runners have a process of their own, perhaps on another machine."""
    return int(config.num_env_runners) + int(config.evaluation_num_env_runners)


def _start(ray: Any, config: Any) -> None:
    """Start Ray in this process alone, unless an address says where a cluster is."""
    if os.environ.get("RAY_ADDRESS"):
        ray.init(logging_level=logging.WARNING)
        return
    cpus = max(1 + config.num_env_runners * max(1, config.num_cpus_per_env_runner), os.cpu_count() or 1)
    ray.init(
        address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING
    )


def _config(recipe: PpoRecipe, settings: Mapping[str, Any]) -> Any:
    """Make RLlib's configuration of a recipe.

    Raises:
        UsageError: if a setting is unknown, or RLlib does not accept a value.
    """
    config = need("ray.rllib.algorithms.ppo", WHO, EXTRA).PPOConfig()
    model = need("ray.rllib.core.rl_module.default_model_config", WHO, EXTRA).DefaultModelConfig
    need("ray.tune.registry", WHO, EXTRA).register_env(ENV, runner.make_env)
    check_trainer(recipe.trainer, _settings(config), "PPOConfig")
    check_trainer(recipe.model, (field.name for field in dataclasses.fields(model)), "DefaultModelConfig", "model")
    config = config.environment(ENV, env_config=dict(settings)).debugging(seed=recipe.seed, log_level="ERROR")
    config = config.fault_tolerance(restart_failed_sub_environments=True)  # an episode that raises is dropped
    try:
        config = config.update_from_dict(dict(recipe.trainer))
        config = config.rl_module(model_config=model(**recipe.model))
        config.validate()
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"[trainer]: PPOConfig does not accept these settings: {error}") from error
    return config


def _settings(config: Any) -> set[str]:
    """Return the names that a configuration has: its attributes, and properties that can be set."""
    properties = {
        name
        for kind in type(config).__mro__
        for name, member in vars(kind).items()
        if isinstance(member, property) and member.fset is not None
    }
    return {name for name in {*vars(config), *properties} if not name.startswith("_")}


def _learn(ray: Any, recipe: PpoRecipe, template: KnobTemplate, config: Any, run: TrainRun, log: Log) -> Searched:
    """Iterate until the recipe's end, with a checkpoint now and then."""
    algorithm = config.build_algo()
    with ExitStack() as ending:
        ending.callback(_stop, ray, algorithm)
        if run.checkpoint is not None:
            algorithm.restore_from_path(str(run.checkpoint))
        try:
            evaluated = _iterate(algorithm, recipe, run.folder, log)
        except PtxgymError:  # what has been learnt was paid for
            _save(algorithm, run.folder)
            if _other_processes(config):
                ending.pop_all()  # RLlib would wait for env runners that fail whenever they are started; Ray ends them
            raise
        _save(algorithm, run.folder)
        algorithm.get_module().save_to_path(str(run.folder / MODEL))
        if not evaluated:
            raise InfrastructureError(f"nothing was evaluated in {algorithm.iteration} iterations: see the log of Ray")
        best = max(evaluated, key=lambda each: each.score)
        write_whole(run.folder / BEST, template.render(template.choose(best.setting)))
        kernel, model = run.folder / BEST, run.folder / MODEL
        return Searched(algorithm.iteration, len(evaluated), best, kernel, model, run.metrics())


def _stop(ray: Any, algorithm: Any) -> None:
    """Stop an algorithm, and kill env runners that do not end.

    RLlib waits for them without a limit: for as long as each is in turns that a service which is gone does not answer.

    Raises:
        Exception: what `stop` raises; that may be a TimeoutError of its own.
    """
    stopped = started(algorithm.stop, "ptxgym-rllib-stop")
    if not wait([stopped], STOP_LIMIT_S).done:
        for group in (algorithm.env_runner_group, algorithm.eval_env_runner_group):
            for actor in () if group is None else list(group._worker_manager.actors().values()):
                ray.kill(actor)
        if not wait([stopped], STOP_LIMIT_S).done:
            logger.warning(
                "RLlib has not ended %g s after its env runners were killed, and is left: what still runs may start "
                "Ray anew",
                STOP_LIMIT_S,
            )
            return
    stopped.result()


def _iterate(algorithm: Any, recipe: PpoRecipe, folder: Path, log: Log) -> list[Evaluated]:
    """Iterate; return what was evaluated.

    Raises:
        InfrastructureError: if the machine fails at one episode after the other.
    """
    evaluated = read_journals(folder / JOURNALS)
    turns, barren = 0.0, 0
    while algorithm.iteration < recipe.iterations and (
        recipe.evaluations is None or len(evaluated) < recipe.evaluations
    ):
        result = algorithm.train()
        evaluated = read_journals(folder / JOURNALS)
        numbers = _numbers(result, evaluated)
        log(algorithm.iteration, numbers)
        barren, turns = barren + 1 if numbers.get("turns", turns) == turns else 0, numbers.get("turns", turns)
        if barren >= MOST_BARREN:
            raise InfrastructureError(
                f"no env runner has sampled a turn in {barren} iterations in a row; --resume goes on when the machine "
                "is mended (the log of Ray says what failed)"
            )
        if algorithm.iteration % recipe.save_iterations == 0:
            _save(algorithm, folder)
    return evaluated


def _numbers(result: Mapping[str, Any], evaluated: Sequence[Evaluated]) -> dict[str, float]:
    """Return what is logged of an iteration."""
    sampled = result.get("env_runners", {})
    learnt = result.get("learners", {}).get("default_policy", {})
    numbers = {
        "return_mean": sampled.get("episode_return_mean"),
        "turns": sampled.get("num_env_steps_sampled_lifetime"),
        **{name: learnt.get(name) for name in LEARNT},
        "evaluations": len(evaluated),
        "best_score": max((each.score for each in evaluated), default=0.0),
        "right": sum(each.status == "ok" for each in evaluated),
    }
    return {name: float(value) for name, value in numbers.items() if value is not None}


def _save(algorithm: Any, folder: Path) -> None:
    """Write a checkpoint; the file that says that it is whole comes last."""
    iteration = algorithm.iteration
    path = folder / CHECKPOINTS / f"checkpoint-{iteration}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    algorithm.save_to_path(str(path))
    write_whole(path / "trainer_state.json", json.dumps({"iteration": iteration}) + "\n")
