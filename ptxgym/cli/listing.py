"""`ptxgym list` and `ptxgym cache`."""

from __future__ import annotations

from rich.table import Table

from ptxgym import content
from ptxgym.agent.registry import agent_summaries
from ptxgym.bench.recipe import load_recipe
from ptxgym.cache import Cache
from ptxgym.cli.console import out, plain
from ptxgym.envs import env_names, load_env
from ptxgym.reward import load_reward
from ptxgym.task import load_task
from ptxgym.variants import SPLITS, traits_of, variants_of


def show_list() -> None:
    """Print all environments, tasks, rewards, agents and recipes."""
    envs = Table("environment", "pinned id", "task", "arch", "turns", "reward", "stop", box=None, header_style="bold")
    for name in env_names():
        config = load_env(name)
        cells = (name, config.pinned, config.task, config.arch, str(config.turns), config.reward, config.stop)
        envs.add_row(*cells)
    tasks = Table("task", "revision", "title", "architectures", box=None, header_style="bold")
    for name in content.find("tasks"):
        task = load_task(name)
        tasks.add_row(name, str(task.revision), plain(task.title), ", ".join(task.solutions))
    rewards = Table("reward", "pays", box=None, header_style="bold")
    for name in content.find("rewards"):
        rewards.add_row(name, plain(load_reward(name).summary))
    agents = Table("agent", "answers with", box=None, header_style="bold")
    for name, summary in agent_summaries().items():
        agents.add_row(name, plain(summary))
    recipes = Table("recipe", "plays", box=None, header_style="bold")
    for name in content.find("configs"):
        recipes.add_row(name, plain(load_recipe(name).summary))
    for table in (envs, tasks, rewards, agents, recipes):
        out.print(table)
        out.print()


def show_variants() -> None:
    """Print every variant of every task, and what its traits mean."""
    counts = dict.fromkeys(SPLITS, 0)
    for name in content.find("tasks"):
        task = load_task(name)
        table = Table(name, "split", "difficulty", "differs by", box=None, header_style="bold")
        traits = traits_of(task)
        for variant in variants_of(task):
            counts[variant.split] += 1
            differs = "; ".join(traits[trait].summary for trait in variant.traits) or "(the task itself)"
            table.add_row(variant.name, variant.split, str(variant.difficulty), plain(differs))
        out.print(table)
        out.print()
    out.print(plain(", ".join(f"{split}: {count}" for split, count in counts.items())))


def show_cache(*, clear: bool) -> None:
    """Print what the user's cache holds; with `clear`, empty it first."""
    cache = Cache()
    if clear:
        out.print(plain(f"removed {cache.clear()} entries"))
    stats = cache.stats()
    out.print(plain(f"{stats.root} (set PTXGYM_CACHE to move it; at most {stats.max_bytes / 2**30:.0f} GiB)"))
    table = Table("kind", "entries", "MiB", box=None, header_style="bold")
    for kind in sorted(stats.entries):
        table.add_row(kind, str(stats.entries[kind]), f"{stats.size_bytes[kind] / 2**20:.1f}")
    table.add_row("all", str(stats.total_entries), f"{stats.total_bytes / 2**20:.1f}")
    out.print(table)
