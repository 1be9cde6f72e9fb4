"""Commands about the catalogue: knobs list, show and audit; models; validate."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path

import click

from autotune.cli import completion
from autotune.cli.group import Failed
from autotune.cli.reading import json_option
from autotune.cli.running import errors_in_one_line
from autotune.knob_json import knob_json
from autotune.space import Knob


@click.group()
def knobs() -> None:
    """List, explain and audit the knobs."""


def _how(knob: Knob) -> str:
    return ", ".join(f"{kind} {target}" for kind, target in knob.apply.items())


@knobs.command("list")
@click.option("--task", help="train or serve.")
@click.option("--device", help="cpu or cuda.")
@click.option("--live", is_flag=True, help="Only knobs that act on this host.")
@click.option("--match", metavar="GLOB", help="Only names that match.")
@click.option("--markdown", is_flag=True, help="As the page docs/knobs.md.")
@click.option(
    "--audit",
    "audited",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="With --markdown: an audit.json whose findings stand beside the knobs.",
)
@json_option
def list_knobs(
    task: str | None,
    device: str | None,
    live: bool,
    match: str | None,
    markdown: bool,
    audited: Path | None,
    as_json: bool,
) -> None:
    """List the knobs of the catalogue."""
    from autotune import audit, catalogue, knob_pages

    with errors_in_one_line():
        found = catalogue.listed(task=task, device=device, live=live)
    found = [k for k in found if match is None or fnmatch(k.name, match)]
    if as_json:
        click.echo(json.dumps([knob_json(k) for k in found], indent=2))
        return
    if markdown:
        with errors_in_one_line():
            findings = audit.read_findings(audited) if audited else []
        click.echo(knob_pages.markdown(found, findings), nl=False)
        return
    for knob in found:
        click.echo(f"{knob.name:<44} {str(knob.domain)[:40]:<40} default {knob.default}")
    click.echo(f"{len(found)} knobs", err=True)


@knobs.command("show")
@click.argument("name", shell_complete=completion.knobs)
@json_option
def show_knob(name: str, as_json: bool) -> None:
    """Explain one knob."""
    from autotune import space_file

    with errors_in_one_line():
        knob = space_file.load_catalogue().knob(name)
    if as_json:
        click.echo(json.dumps(knob_json(knob), indent=2))
        return
    for key, value in knob_json(knob).items():
        if value not in ("", [], {}):
            shown = _how(knob) if key == "apply" else value
            click.echo(
                f"{key:>9}  {', '.join(map(str, shown)) if isinstance(shown, list) else shown}"
            )


@knobs.command("audit")
@click.argument("model", shell_complete=completion.models)
@click.option("--task", default="train", show_default=True)
@click.option("--only", multiple=True, metavar="GLOB", help="Audit only these knobs.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
@click.option("--repeats", type=click.IntRange(1, 50), default=3, show_default=True)
@click.option("--budget", help="Stop after this time; run again to go on.")
@json_option
def audit(
    model: str,
    task: str,
    only: tuple[str, ...],
    out: Path,
    repeats: int,
    budget: str | None,
    as_json: bool,
) -> None:
    """Set each knob to another value in a live trial, read it back, measure its effect."""
    from autotune import audit_study

    with errors_in_one_line():
        result = audit_study.run(
            model,
            task=task,
            only=only,
            out=out,
            repeats=repeats,
            budget=budget,
            say=lambda text: click.echo(text, err=True),
        )
    click.echo(json.dumps(result.as_json(), indent=2) if as_json else result.text())


@click.command()
@json_option
def models(as_json: bool) -> None:
    """List the models that are known by name."""
    from autotune import space_file

    with errors_in_one_line():
        found = [space_file.load_model(name) for name in space_file.model_names()]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for model in found:
        click.echo(
            f"{model['name']:<16} {model['num_hidden_layers']:>3} layers, hidden "
            f"{model['hidden_size']}, {model['num_attention_heads']} heads, "
            f"vocabulary {model['vocab_size']}"
        )
    click.echo("MODEL also takes a folder with a Hugging Face config.json", err=True)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True))
def validate(file: Path) -> None:
    """Check a space, model, study or configuration file (or a model folder)."""
    from autotune import catalogue

    with errors_in_one_line():
        kind = catalogue.validate(file)
    if not kind:
        raise Failed(f"{file} is neither a space, a model, a study nor a best.yaml")
    click.echo(f"{file}: a valid {kind}")
