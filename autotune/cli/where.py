"""Where the store is: the option that every command shares, and the way to open it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from autotune.cli.group import Failed

store_option = click.option(
    "--store",
    envvar="AUTOTUNE_STORE",
    metavar="URL",
    help="SQLAlchemy URL or SQLite file [default: OUT/autotune.db].",
)
out_option = click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True
)


def store_url(store: str | None, out: Path) -> str:
    """The URL to open: as given, a file turned into a URL, or the database in the out folder."""
    if store is None:
        return f"sqlite:///{out.absolute() / 'autotune.db'}"
    return store if "://" in store else f"sqlite:///{Path(store).absolute()}"


@contextmanager
def open_store(store: str | None, out: Path, *, must_exist: bool = True) -> Iterator[Any]:
    """An open store; one line and exit 2 when it is missing, damaged or foreign."""
    stores = importlib.import_module("autotune.store")
    url = store_url(store, out)
    if must_exist and url.startswith("sqlite:///") and not Path(url[10:]).exists():
        raise Failed(f"no store at {url[10:]}; run `autotune tune MODEL` first or give --store")
    try:
        opened = stores.Store(url)
    except stores.StoreError as error:
        raise Failed(str(error)) from None
    try:
        yield opened
    finally:
        opened.close()
