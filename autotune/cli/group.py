"""The command group: which commands there are, and how their errors and exit codes come out."""

from __future__ import annotations

import importlib
import sys

import click

# command -> module:function; imported only when the command (or its help) is asked for.
COMMANDS = {
    "tune": "autotune.cli.tuning:tune",
    "resume": "autotune.cli.tuning:resume",
    "studies": "autotune.cli.reading:studies",
    "show": "autotune.cli.reading:show",
    "trials": "autotune.cli.reading:trials",
    "compare": "autotune.cli.reading:compare",
    "delete": "autotune.cli.reading:delete",
    "salvage": "autotune.cli.reading:salvage",
    "report": "autotune.cli.handing:report",
    "export": "autotune.cli.handing:export",
    "measure": "autotune.cli.measuring:measure",
    "replay": "autotune.cli.measuring:replay",
    "knobs": "autotune.cli.knobs:knobs",
    "playbook": "autotune.cli.playbook:playbook",
    "models": "autotune.cli.knobs:models",
    "validate": "autotune.cli.knobs:validate",
    "doctor": "autotune.cli.host:doctor",
    "serve": "autotune.cli.host:serve",
    "completion": "autotune.cli.completion:completion",
}
SUMMARIES = {
    "tune": "Find the configuration that makes MODEL train or serve best.",
    "resume": "Finish a study that was started.",
    "studies": "List the studies in the store.",
    "show": "Show where a study stands and what it found.",
    "trials": "List every trial of a study.",
    "compare": "Hold two studies side by side.",
    "delete": "Delete a study from the store.",
    "salvage": "Copy what can still be read from a damaged store.",
    "report": "Write the HTML report of a study.",
    "export": "Write a configuration for other tools.",
    "measure": "Measure an exported configuration again.",
    "replay": "Run one trial of a study again by hand.",
    "knobs": "List, explain and audit the knobs.",
    "playbook": "Measure what each optimisation buys on this host.",
    "models": "List the models that are known by name.",
    "validate": "Check a space, model, study or configuration file.",
    "doctor": "Say what was found on this host and what is wrong with it.",
    "serve": "Run the HTTP service.",
    "completion": "Print the script that completes words in a shell.",
}


class _Lazy(click.Group):
    """Knows its commands by name and imports one when it is used."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from autotune.space import nearest

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]}{nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))

    def main(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        """Usage errors in one line, like every other error."""
        kwargs["standalone_mode"] = False
        try:
            result = super().main(*args, **kwargs)  # type: ignore[call-overload]
        except click.exceptions.Exit as done:
            sys.exit(done.exit_code)
        except click.Abort:
            click.echo("interrupted", err=True)
            sys.exit(130)
        except click.ClickException as error:
            click.echo(f"autotune: {' '.join(error.format_message().split())}", err=True)
            sys.exit(error.code if isinstance(error, Failed) else 2)
        sys.exit(result if isinstance(result, int) else 0)


class Failed(click.ClickException):
    """Ends a command with one line on stderr and the exit code given."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("autotune-llm")
    except PackageNotFoundError:
        return "0 (not installed)"


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"autotune {_version()}")
        ctx.exit()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version)
def cli() -> None:
    """Find, prove and hand over the configuration that makes an LLM train or serve best.

    Exit codes: 0 done, 2 bad input (nothing was run), 3 nothing feasible, 4 stopped by a breaker
    or a storage fault, 130 interrupted.
    """
