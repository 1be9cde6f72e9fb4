"""Ray itself: started or joined without noise, and what its nodes have to offer."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autotune import environment


class NoResources(RuntimeError):
    """The cluster does not have what a trial needs; says asked and available."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A host with what it has in all, in use or not."""

    name: str
    gpus: float
    cpus: float

    def room_for(self, gpus: int, cpus: int) -> int | None:
        """How many trials that need so much fit; None where nothing limits them."""
        asked = ((self.gpus, gpus), (self.cpus, cpus))
        return min((int(have // need) for have, need in asked if need), default=None)

    def __str__(self) -> str:
        return f"{self.name} has {self.gpus:g} GPU and {self.cpus:g} CPU"


def this_node(gpus: int) -> Node:
    """This host, known without Ray."""
    return Node(name=socket.gethostname(), gpus=gpus, cpus=os.cpu_count() or 1)


def nodes() -> list[Node]:
    """Those alive of the Ray that was joined."""
    import ray

    return [
        Node(
            name=n["NodeManagerHostname"],
            gpus=n["Resources"].get("GPU", 0),
            cpus=n["Resources"].get("CPU", 0),
        )
        for n in ray.nodes()  # type: ignore[no-untyped-call]
        if n["Alive"]
    ]


def room(on: list[Node], *, gpus: int, cpus: int, most: int) -> int:
    """How many trials fit at a time, ``most`` at most; raises NoResources when that is none."""
    found = [node.room_for(gpus, cpus) for node in on]
    total = sum(most if each is None else each for each in found)
    if not total:
        asked = " and ".join(f"{n} {what}" for n, what in ((gpus, "GPU"), (cpus, "CPU")) if n)
        have = ", ".join(map(str, on)) or "no node is alive"
        raise NoResources(f"a trial needs {asked or 'a node'} on one node; {have}")
    return min(most, total)


def _quiet() -> dict[str, Any]:
    """Options of ray.init without usage reports or log noise; what it reads when it is imported
    has to be in the environment by then."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)  # the import sets it too
    # Ray prints the end of a worker to stdout, in colour, whatever it is told of logging; records
    # say it already, and stdout belongs to --json.
    vars(ray._private.worker)["_worker_logs_enabled"] = False
    return {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": False,
        "namespace": "autotune",
    }


@contextmanager
def _sigterm_stays_ours() -> Iterator[None]:
    """Ray installs a handler for SIGTERM that prints a stack and aborts, over the driver's own.

    From C, since Python sets handlers in its main thread only and Ray is started beside that.
    """
    libc, ours = ctypes.CDLL(None), ctypes.create_string_buffer(1024)  # room for any sigaction
    libc.sigaction(signal.SIGTERM, None, ours)
    try:
        yield
    finally:
        libc.sigaction(signal.SIGTERM, ours, None)


def join(address: str) -> None:
    """Use a Ray that somebody else started."""
    options = _quiet()
    import ray

    with _sigterm_stays_ours():
        ray.init(address=address, **options)


def start(workers: int, gpus: int) -> None:
    """Start a private one, on the loopback interface."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # A trial is measured: nothing on the host may outrank it.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # All of Ray listens on loopback only: the one thing that does it, an address for ray.init does
    # not. Its name says where it was needed first.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    options = _quiet()
    import ray

    # Cores are not what limits trials here: a slot is a promise, and trials choose their threads.
    with _sigterm_stays_ours():
        ray.init(
            address="local",  # else it would join whatever Ray runs on this host
            num_cpus=max(1, workers),
            num_gpus=gpus,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            object_store_memory=80 << 20,
            **options,
        )


def variables(*, elsewhere: bool) -> dict[str, str | None]:
    """What a worker's environment must have, and (None) what Ray put there of its own accord.

    On this host it inherits the driver's; elsewhere it gets what is on the allow-list.
    """
    found: dict[str, str | None] = dict(environment.forwarded()) if elsewhere else {}
    if "OMP_NUM_THREADS" not in os.environ:
        found["OMP_NUM_THREADS"] = None  # else one core, whatever the host has
    return found


def first_line(error: BaseException) -> str:
    """Ray's errors are long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
