"""`tune` and `resume`: from words on a command line to a running study."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from autotune.cli import completion
from autotune.cli.group import Failed
from autotune.cli.where import store_option

_STARTED_FROM = "autotune"


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _many(*names: str, **more: Any) -> Decorator:
    return click.option(*names, multiple=True, **more)


@click.command()
@click.argument("model", shell_complete=completion.models)
@click.option("--task", default="train", show_default=True, help="train or serve.")
@click.option("--runner", default="torch", show_default=True, help="torch, vllm, command or toy.")
@click.option(
    "--goal",
    default="throughput",
    show_default=True,
    help="throughput, latency, memory, energy, cost or balanced.",
)
@_many("--objective", "objectives", metavar="METRIC:max|min", help="Instead of --goal.")
@_many("--limit", "limits", metavar="'METRIC<=VALUE'", help="A bound that the best must keep.")
@click.option("--budget", help="Wall time of all trials, such as 10m (CPU 6m, GPU 15m).")
@click.option("--trials", type=int, help="Number of trials, final repeats included.")
@click.option("--trial-timeout", help="Longest time of one trial [default: 120s].")
@_many(
    "--set",
    "settings",
    metavar="KNOB=VALUE",
    help="Fix a knob.",
    shell_complete=completion.knobs,
)
@_many("--only", shell_complete=completion.knobs, metavar="GLOB", help="Tune only these knobs.")
@_many(
    "--exclude",
    shell_complete=completion.knobs,
    metavar="GLOB",
    help="Leave these knobs at their defaults.",
)
@_many("--space", "space_files", metavar="FILE", help="Further knobs and rules.")
@click.option("--strategy", default="auto", show_default=True, help="How to search.")
@click.option("--study", help="Name of the study [default: model, task and time].")
@click.option("--from", "warm_start", metavar="STUDY", help="Use an earlier study as a prior.")
@store_option
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
@click.option("--workers", type=int, help="Trials at a time [default: one per GPU set].")
@click.option("--gpus-per-trial", type=int, help="GPUs that each trial gets.")
@click.option("--cpus-per-trial", type=int, default=0, help="Cores that each trial must find.")
@click.option("--ray-address", help="Use this Ray cluster instead of a private one.")
@click.option("--price", type=float, metavar="USD", help="Dollars per GPU hour.")
@click.option("--seed", type=int, default=0, show_default=True)
@_many("--workload", metavar="KEY=VALUE", help="Facts of the job, such as requests=512.")
@_many("--env", "environ", metavar="KEY=VALUE", help="A variable that every trial gets.")
@click.option("--command", default="", help="Runner command: 'PROGRAM {knob} --out {out}'.")
@_many("--fault", "faults", help="Runner toy: such as 'oom if batch>64'.")
@_many("--option", "options", metavar="KEY=VALUE", help="Further options of the runner.")
@click.option("--dry-run", is_flag=True, help="Check everything, show the plan, run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Only JSON on stdout.")
def tune(store: str | None, out: Path, dry_run: bool, as_json: bool, **asked: Any) -> int:
    """Find the configuration that makes MODEL train or serve best.

    MODEL is a name (see `autotune models`), a folder with a Hugging Face config.json, or a study
    file (YAML) that holds these options.
    """
    from autotune import plan as planning
    from autotune import request_file
    from autotune.cli.running import errors_in_one_line, run
    from autotune.request import Request

    with errors_in_one_line():
        words: dict[str, Any] = {
            k: v if not isinstance(v, tuple) else tuple(v) for k, v in asked.items()
        }
        path = Path(asked["model"])
        if path.suffix in (".yaml", ".yml") and path.is_file():
            given = _given_on_the_command_line() - {"model"}
            overrides = {k: words[k] for k in given & set(words)}
            request = request_file.load(path, overrides)
            with request_file.locating(path, overrides):
                plan = planning.make(request, [_STARTED_FROM, *sys.argv[1:]])
        else:
            plan = planning.make(Request(**words), [_STARTED_FROM, *sys.argv[1:]])
    return run(plan, store=store, out=out, dry_run=dry_run, as_json=as_json)


@click.command()
@click.argument("study", shell_complete=completion.studies)
@store_option
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
@click.option("--trials", type=int, help="Raise (or lower) the total number of trials.")
@click.option("--budget", help="Grant this much more wall time.")
@click.option("--ray-address", help="Use this Ray cluster instead of a private one.")
@click.option("--json", "as_json", is_flag=True, help="Only JSON on stdout.")
def resume(
    study: str,
    store: str | None,
    out: Path,
    trials: int | None,
    budget: str | None,
    ray_address: str | None,
    as_json: bool,
) -> int:
    """Finish a study that was started: abandoned trials run again, nothing is measured twice."""
    from autotune import plan as planning
    from autotune.cli.running import errors_in_one_line, run
    from autotune.cli.where import open_store

    with errors_in_one_line(), open_store(store, out) as opened:
        earlier = opened.load(study)
        plan = planning.again(earlier.spec, trials=trials, budget=budget, ray_address=ray_address)
    return run(plan, store=store, out=out, dry_run=False, as_json=as_json, resumed=True)


def _given_on_the_command_line() -> set[str]:
    """Parameters that the user typed, as against defaults: these go over a study file."""
    context = click.get_current_context()
    typed = click.core.ParameterSource.COMMANDLINE
    return {n for n in context.params if context.get_parameter_source(n) is typed}


__all__ = ["Failed", "resume", "tune"]
