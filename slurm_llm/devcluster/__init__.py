"""A real multi-node Slurm on one Debian machine, for trying and testing; it knows nothing of jobs or models.

Flow: shape.py is what a cluster consists of, submitfilter.py what it refuses, config.py the pure text of the
configuration files, packages.py is apt, daemons.py starts and ends background processes, namespaces.py makes the
network, host.py is what changes outside the state directory, accounting.py is MariaDB and slurmdbd, nodes.py is one
node, cluster.py ties them together.
"""

from __future__ import annotations

from slurm_llm.devcluster.cluster import (
    ClusterStatus,
    DaemonStatus,
    NodeStatus,
    down,
    node_action,
    status,
    up,
)
from slurm_llm.devcluster.config import DEFAULT_STATE, ClusterSpec
from slurm_llm.devcluster.shape import NodeKind, Quality, Queue, Reservation, Shape

__all__ = [
    "DEFAULT_STATE",
    "ClusterSpec",
    "ClusterStatus",
    "DaemonStatus",
    "NodeKind",
    "NodeStatus",
    "Quality",
    "Queue",
    "Reservation",
    "Shape",
    "down",
    "node_action",
    "status",
    "up",
]
