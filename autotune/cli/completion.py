"""Words that a shell offers: models, studies and knobs; and the script that makes it offer them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from autotune.cli.group import Failed


def models(_ctx: click.Context, _param: click.Parameter, start: str) -> list[CompletionItem]:
    """Names of models; the shell itself offers folders."""
    from autotune import space_file

    return [CompletionItem(n) for n in space_file.model_names() if n.startswith(start)]


def studies(ctx: click.Context, _param: click.Parameter, start: str) -> list[CompletionItem]:
    """Names of studies in the store that the command line names so far."""
    from autotune.cli.where import open_store

    out = Path(ctx.params.get("out") or "runs")
    with (
        contextlib.suppress(Exception),  # a shell is not told of a store that cannot be read
        open_store(ctx.params.get("store"), out) as store,
    ):
        found = [row for row in store.studies() if row.name.startswith(start)]
        return [CompletionItem(row.name, help=row.state) for row in found]
    return []


def knobs(_ctx: click.Context, _param: click.Parameter, start: str) -> list[CompletionItem]:
    """Names of knobs."""
    from autotune import space_file

    found = space_file.load_catalogue().knobs
    return [CompletionItem(k.name, help=k.summary) for k in found if k.name.startswith(start)]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete commands, models, studies and knobs.

    bash: eval "$(autotune completion bash)" in ~/.bashrc; zsh alike; fish:
    autotune completion fish | source.
    """
    from autotune.cli.group import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise Failed(f"no completion for {shell}")
    click.echo(kind(cli, {}, "autotune", "_AUTOTUNE_COMPLETE").source())
