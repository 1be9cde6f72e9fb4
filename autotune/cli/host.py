"""Commands about the host: what was found on it, and the service that runs on it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from autotune.cli.group import Failed
from autotune.cli.reading import json_option
from autotune.cli.where import out_option, store_option, store_url


@click.command()
@store_option
@out_option
@json_option
def doctor(store: str | None, out: Path, as_json: bool) -> int:
    """Say what was found on this host and what is wrong with it."""
    from autotune import hardware
    from autotune.store import inspect

    checks = [*hardware.doctor(out), *inspect(store_url(store, out))]
    if as_json:
        click.echo(json.dumps([list(check) for check in checks], indent=2))
    else:
        for name, state, text, cure in checks:
            click.echo(f"{state:<5} {name:<14} {text}{f' -> {cure}' if cure else ''}")
    return 2 if any(state == "fail" for _, state, _, _ in checks) else 0


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True)
@click.option("--token", envvar="AUTOTUNE_TOKEN", help="Demanded for any other address.")
@store_option
@out_option
def serve(host: str, port: int, token: str | None, store: str | None, out: Path) -> None:
    """Run the HTTP service: queue studies, watch them live, browse reports, fetch exports."""
    from autotune import service

    try:
        service.serve(host=host, port=port, token=token, store=store_url(store, out), out=out)
    except service.ServiceError as error:
        raise Failed(str(error)) from None
