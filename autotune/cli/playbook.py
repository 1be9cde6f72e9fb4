"""``autotune playbook MODEL``: which claims about optimisations hold on this host."""

from __future__ import annotations

import json
from pathlib import Path

import click

from autotune.cli import completion
from autotune.cli.reading import json_option
from autotune.cli.running import errors_in_one_line


@click.command()
@click.argument("model", shell_complete=completion.models)
@click.option("--only", metavar="ID,...", default="", help="Only these claims, such as C04,C11.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
@click.option("--repeats", type=click.IntRange(2, 50), default=5, show_default=True)
@click.option("--budget", help="Stop after this time; run again to go on.")
@click.option("--list", "listing", is_flag=True, help="Only list the claims.")
@json_option
def playbook(
    model: str,
    only: str,
    out: Path,
    repeats: int,
    budget: str | None,
    listing: bool,
    as_json: bool,
) -> None:
    """Measure what each optimisation buys on this host, claim by claim.

    Arms of a claim run in turn, each repeat in a fresh process. Leaves OUT/playbook-MODEL/ with
    playbook.json, playbook.md and playbook.html. Run again, it goes on where it stopped.
    """
    from autotune import claims, playbook, playbook_pages
    from autotune.request import parse_seconds

    with errors_in_one_line():
        chosen = claims.choose(claims.load(), tuple(i for i in only.split(",") if i))
        if listing:
            for claim in chosen:
                click.echo(f"{claim.id:<4} {claim.technique:<34} {claim.says}")
            return
        entries = playbook.run(
            chosen,
            model,
            out=out,
            repeats=repeats,
            seconds=parse_seconds(budget, "--budget") if budget else None,
            say=lambda text: click.echo(text, err=True),
        )
        folder = playbook_pages.write(entries, model, out)
    if as_json:
        click.echo(json.dumps(playbook_pages.as_json(entries), indent=2))
        return
    for entry in entries:
        click.echo(f"{entry.id:<4} {entry.technique:<34} {entry.verdict:<18} {entry.reason}")
    click.echo(f"wrote {folder}/playbook.html", err=True)
