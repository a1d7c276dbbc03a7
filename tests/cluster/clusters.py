"""Ray clusters on this machine, for tests."""

from __future__ import annotations

from typing import Any

from ray.cluster_utils import Cluster

TRIES = 4
"""A node that is not up within 30 s, or whose agent is not within 15, as on a busy machine, is an error to Ray."""


def new_cluster() -> Any:
    """Return a cluster whose head does no work."""
    for _ in range(TRIES - 1):
        made = Cluster()
        try:
            made.add_node(num_cpus=0, include_dashboard=False)
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
        else:
            return made
    return Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})


def add_node(cluster: Any, **what: Any) -> Any:
    """Add a node."""
    for _ in range(TRIES - 1):
        try:
            return cluster.add_node(**what)
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    return cluster.add_node(**what)
