"""Commands that hand results over: report and export."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli import completion
from autotune.cli.group import Failed
from autotune.cli.reading import load_study
from autotune.cli.where import out_option, store_option


@click.command()
@click.argument("study", shell_complete=completion.studies)
@store_option
@out_option
@click.option(
    "-o", "output", type=click.Path(path_type=Path), help="[default: OUT/STUDY/report.html]"
)
@click.option("--strict", is_flag=True, help="Leave out points that break a limit.")
def report(study: str, store: str | None, out: Path, output: Path | None, strict: bool) -> None:
    """Write one self-contained HTML file; works for unfinished studies too."""
    from autotune import deliver

    loaded = load_study(study, store, out)
    target = output or out / study / "report.html"
    try:
        deliver.report(loaded, target, strict=strict)
    except deliver.ReportFailed as error:
        raise Failed(str(error)) from None
    click.echo(f"wrote {target}")


@click.command()
@click.argument("study", shell_complete=completion.studies)
@store_option
@out_option
@click.option("--trial", default="best", show_default=True, help="best, or a trial number.")
@click.option("--format", "form", default="yaml", show_default=True, help="See below.")
@click.option("-o", "output", type=click.Path(path_type=Path), help="[default: stdout]")
def export(
    study: str, store: str | None, out: Path, trial: str, form: str, output: Path | None
) -> None:
    """Write a configuration for other tools.

    Formats: yaml, env, python, shell, vllm, sglang, trtllm, torchrun, deepspeed, accelerate,
    megatron; optuna writes a study that optuna-dashboard opens.
    """
    from autotune import export as exporting

    loaded = load_study(study, store, out)
    if trial != "best" and not trial.isdigit():
        raise Failed(f"--trial {trial} should be 'best' or a number")
    try:
        text = exporting.text(loaded, form, trial=None if trial == "best" else int(trial))
        if output is None:
            click.echo(text, nl=False)
            return
        exporting.write_atomically(output, text)
    except exporting.ExportError as error:
        raise Failed(str(error)) from None
    except OSError as error:
        raise Failed(f"cannot write {output}: {error.strerror}") from None
    click.echo(f"wrote {output}", err=True)
