"""Commands that read the store: studies, show, trials, compare; and delete, salvage."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import click

from autotune.cli import completion
from autotune.cli.group import Failed
from autotune.cli.where import open_store, out_option, store_option
from autotune.space import nearest
from autotune.study import Study
from autotune.trial import TrialRecord, to_json

json_option = click.option("--json", "as_json", is_flag=True, help="Only JSON on stdout.")


def load_study(name: str, store: str | None, out: Path) -> Study:
    """The study of that name; one line with the nearest known names and exit 2 otherwise."""
    with open_store(store, out) as opened:
        known = [s.name for s in opened.studies()]
        if name not in known:
            listing = ", ".join(known[-5:]) or "none"
            raise Failed(f"no study {name}{nearest(name, known)} (known: {listing})")
        study = opened.load(name)
    assert isinstance(study, Study)
    return study


@click.command()
@store_option
@out_option
@json_option
def studies(store: str | None, out: Path, as_json: bool) -> None:
    """List the studies in the store."""
    with open_store(store, out) as opened:
        rows = opened.studies()
    if as_json:
        click.echo(json.dumps([to_json(row) for row in rows], indent=2))
        return
    for row in rows:
        click.echo(f"{row.name:<48} {row.state:<12} {row.trials:>6} trials  {row.created_at}")


@click.command()
@click.argument("study", shell_complete=completion.studies)
@store_option
@out_option
@json_option
def show(study: str, store: str | None, out: Path, as_json: bool) -> None:
    """Show where a study stands and what it found."""
    from autotune.summary import best_record, metric_table, summary, summary_lines

    loaded = load_study(study, store, out)
    with open_store(store, out) as opened:
        running = opened.claims(study)
    if as_json:
        click.echo(json.dumps({**summary(loaded), "claims": to_json(running)}, indent=2))
        return
    planned = loaded.spec.budget.trials
    of_planned = f" of {planned}" if planned else ""
    click.echo(f"{study}: {loaded.state}, {len(loaded.records)}{of_planned} trials")
    for claim in running:
        click.echo(f"  trial {claim.number}: {claim.text}")
    for line in summary_lines(loaded):
        click.echo(line)
    best = best_record(loaded)
    if best is not None and best.measurement is not None:
        click.echo("\n".join(metric_table(best.measurement.metrics)))


@click.command()
@click.argument("study", shell_complete=completion.studies)
@store_option
@out_option
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="CSV on stdout.")
@click.option("--failed", is_flag=True, help="Only trials that failed.")
def trials(
    study: str, store: str | None, out: Path, as_json: bool, as_csv: bool, failed: bool
) -> None:
    """List every trial of a study."""
    from autotune.cli.progress import trial_line
    from autotune.trial import Status

    loaded = load_study(study, store, out)
    records = [r for r in loaded.records if not failed or r.status is not Status.COMPLETE]
    if as_json:
        click.echo(json.dumps([to_json(r) for r in records], indent=2))
    elif as_csv:
        click.echo(trials_csv(records), nl=False)
    else:
        for record in records:
            click.echo(trial_line(record, loaded.spec.objectives[0]))


def trials_csv(records: list[TrialRecord]) -> str:
    """One row per trial: status, failure, metrics, then knobs. Cells never start a formula."""
    metrics = sorted({m for r in records if r.measurement for m in r.measurement.metrics})
    knobs = list(dict.fromkeys(k for r in records for k in r.spec.configuration))
    head = ["number", "stage", "status", "wall_seconds", "reason", "signal", "folder", "last_lines"]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*head, *metrics, *knobs])
    for record in records:
        failure = record.failure
        row: list[object] = [record.spec.number, record.spec.stage, record.status]
        row += [f"{record.wall_seconds:.3f}", failure.reason if failure else ""]
        row += [failure.signal if failure else "", record.folder]
        row += [failure.detail if failure else ""]
        row += [record.measurement.metrics.get(m) if record.measurement else None for m in metrics]
        row += [record.spec.configuration.get(k) for k in knobs]
        writer.writerow([_harmless(cell) for cell in row])
    return text.getvalue()


def _harmless(cell: object) -> object:
    """A spreadsheet would run a text that starts like a formula."""
    return (
        f"'{cell}"
        if isinstance(cell, str) and cell[:1] in ("=", "+", "@", "-", "\t", "\r")
        else cell
    )


@click.command()
@click.argument("first", shell_complete=completion.studies)
@click.argument("second", shell_complete=completion.studies)
@store_option
@out_option
@json_option
@click.option("-o", "output", type=click.Path(path_type=Path), help="Also write a page.")
def compare(
    first: str, second: str, store: str | None, out: Path, as_json: bool, output: Path | None
) -> None:
    """Hold two studies side by side: best values, gains, and the knobs that differ."""
    from autotune.comparing import compared, lines

    studies = [load_study(name, store, out) for name in (first, second)]
    found = compared(*studies)
    if output is not None:
        from autotune import deliver

        deliver.compare_page(studies, output)
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(lines(found)))


@click.command()
@click.argument("study", shell_complete=completion.studies)
@store_option
@out_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(study: str, store: str | None, out: Path, yes: bool) -> None:
    """Delete a study from the store; its folder of logs stays."""
    load_study(study, store, out)
    if not yes:
        click.confirm(f"delete {study} from the store?", abort=True)
    with open_store(store, out) as opened:
        opened.delete(study)
    click.echo(f"deleted {study}")


@click.command()
@click.argument("database", type=click.Path(path_type=Path, exists=True))
def salvage(database: Path) -> None:
    """Copy what can still be read from a damaged store; the original is never touched."""
    from autotune.store import StoreError
    from autotune.store import salvage as rescue

    try:
        copy, count = rescue(database)
    except StoreError as error:
        raise Failed(str(error)) from None
    click.echo(f"{count} trials saved to {copy}")
