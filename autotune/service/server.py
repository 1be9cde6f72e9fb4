"""Starting the service: which address, who may in, and the thread that starts queued studies."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import uvicorn

from autotune.service.app import make_app
from autotune.service.guard import Guard
from autotune.service.runner import Runner
from autotune.store import Store, StoreError


class ServiceError(RuntimeError):
    """The service cannot start as asked; one line with the next step."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(*, host: str, port: int, token: str | None, store: str, out: Path) -> None:
    """Serve until stopped; raises ServiceError before anything is opened to the network."""
    if not is_loopback(host) and not token:
        raise ServiceError(
            f"--host {host} can be reached by others: give --token (or AUTOTUNE_TOKEN), "
            "or stay on 127.0.0.1"
        )
    out.mkdir(parents=True, exist_ok=True)
    try:
        opened = Store(store)
    except StoreError as error:
        raise ServiceError(str(error)) from None
    listening = _bind(host, port)
    address = f"http://{host}:{listening.getsockname()[1]}"
    runner = Runner(store=store, out=out.absolute())
    guard = Guard(token=token, loopback_only=is_loopback(host))
    app = make_app(opened, runner, guard)
    print(f"autotune serves at {address}", flush=True)
    runner.start()
    try:
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        runner.stop()
        opened.close()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()  # before the address is printed: clients may be quick
    except OSError as error:
        listening.close()
        reason = error.strerror or error
        raise ServiceError(
            f"cannot listen on {host}:{port}: {reason}; try another --port"
        ) from None
    return listening
