"""The connection to a Ray cluster: reaching it, its nodes, and one sentence where that fails."""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from lmlab.core.errors import UserError

LOCAL, CLIENT = "ray", "ray://"
"""The forms of `--on`: the first by itself, the second before HOST:PORT."""
REACH_SECONDS = 10.0
"""How long a cluster may take to accept a connection."""


def import_ray() -> ModuleType:
    """Ray, an extra; it is told to send no usage statistics."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("--on ray needs Ray: pip install 'lmlab[ray]'.") from None
    module: ModuleType = ray
    return module


def check_address(on: str) -> None:
    """A UserError where `--on` is of no known form."""
    if on != LOCAL and not re.fullmatch(r"ray://[^/\s]+:\d{1,5}", on):
        raise UserError(f"--on must be ray or ray://HOST:PORT, got {on!r}.")


def connect(on: str) -> bool:
    """Connect this process; true if the connection is this call's, to be closed after use."""
    ray = import_ray()
    if ray.is_initialized():
        return False
    address = on if on.startswith(CLIENT) else os.environ.get("RAY_ADDRESS", "")
    silent = {"logging_level": "CRITICAL", "log_to_driver": False}
    try:
        if not address:  # a local one, which listens to this machine alone
            local = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
            ray.init(address="local", **local, **silent)
        else:
            _check_reachable(address)
            ray.init(address=address, **silent)
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise UserError(
            f"no Ray cluster can be used at {address or 'this machine'} ({reason}); start one with "
            "ray start --head, or correct the address."
        ) from error
    return True


def _check_reachable(address: str) -> None:
    """Raise an OSError at once where nothing listens, which Ray tries for a minute."""
    host, colon, port = address.removeprefix(CLIENT).rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()


@dataclass(frozen=True)
class Resources:
    """What a task reserves on its node."""

    cpus: int
    gpus: float

    def __post_init__(self) -> None:
        if self.cpus < 1:
            raise UserError(f"threads must be at least 1, got {self.cpus}.")
        if not (0 <= self.gpus < math.inf):
            raise UserError(f"gpus must be 0 or more, got {self.gpus}.")

    def slots(self, node: Mapping[str, float]) -> int:
        """How many tasks fit on a node with these resources."""
        slots = int(node.get("CPU", 0.0) / self.cpus)
        return min(slots, int(node.get("GPU", 0.0) / self.gpus)) if self.gpus else slots

    def __str__(self) -> str:
        """In words, for messages."""
        cpus = f"{self.cpus} CPU{'s' if self.cpus > 1 else ''}"
        return f"{cpus} and {self.gpus:g} GPUs" if self.gpus else cpus


def slots_by_node(resources: Resources) -> dict[str, int]:
    """How many tasks fit on each node that is alive and large enough, by its id."""
    nodes = {
        str(node["NodeID"]): resources.slots(node["Resources"])
        for node in import_ray().nodes()
        if node["Alive"]
    }
    return {node: slots for node, slots in nodes.items() if slots}
