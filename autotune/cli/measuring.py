"""Commands that run single trials: measure a promise again, replay a trial by hand."""

from __future__ import annotations

import json
from pathlib import Path

import click

from autotune.cli import completion
from autotune.cli.group import Failed
from autotune.cli.reading import json_option, load_study
from autotune.cli.running import errors_in_one_line
from autotune.cli.where import out_option, store_option


@click.command()
@click.argument("config", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--repeats", type=click.IntRange(1, 100), default=3, show_default=True)
@out_option
@json_option
def measure(config: Path, repeats: int, out: Path, as_json: bool) -> int:
    """Measure an exported configuration again and compare with what it promises."""
    from autotune import again

    with errors_in_one_line():
        found = again.measure(config, repeats, out, say=lambda text: click.echo(text, err=True))
    click.echo(json.dumps(found.as_json(), indent=2) if as_json else found.text())
    return 0 if found.measured else 3


@click.command()
@click.argument("study", shell_complete=completion.studies)
@click.argument("number", type=int)
@store_option
@out_option
def replay(study: str, number: int, store: str | None, out: Path) -> int:
    """Run trial NUMBER of a study again in this terminal, with its log on the screen."""
    from autotune import again

    loaded = load_study(study, store, out)
    records = [r for r in loaded.records if r.spec.number == number]
    if not records:
        raise Failed(f"{study} has no trial {number} (0 to {len(loaded.records) - 1})")
    record = again.replay(records[0], out / study / f"{number:04d}-replay")
    for name, value in (record.measurement.metrics if record.measurement else {}).items():
        before = records[0].measurement.metrics.get(name) if records[0].measurement else None
        click.echo(f"{name:<36} {value!s:>24}  was {before}")
    click.echo(f"{record.status}: {record.failure.reason if record.failure else 'as measured'}")
    return 0 if record.measurement else 3
