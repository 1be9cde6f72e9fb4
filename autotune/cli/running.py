"""Running a study from a terminal: signals, progress, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from autotune.cli.group import Failed
from autotune.cli.progress import make_progress
from autotune.cli.where import open_store
from autotune.plan import Plan
from autotune.space import SpaceError
from autotune.study import Study, StudyError

EXIT_NOTHING_FEASIBLE = 3
EXIT_STOPPED = 4
EXIT_INTERRUPTED = 130


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Bad input, whoever found it, as one line and exit code 2."""
    try:
        yield
    except (StudyError, SpaceError) as error:
        raise Failed(str(error)) from None


def run(
    plan: Plan,
    *,
    store: str | None,
    out: Path,
    dry_run: bool,
    as_json: bool,
    resumed: bool = False,
) -> int:
    """Conduct a study to its end and hand over the report and best.yaml; the exit code."""
    if dry_run:
        _show_plan(plan, as_json)
        return 0
    from autotune import conduct
    from autotune.ray_host import NoResources
    from autotune.store import StoreError

    _check_writable(out)
    with open_store(store, out, must_exist=resumed) as opened, _progress(plan, as_json) as shown:
        with errors_in_one_line():
            try:
                if not resumed:
                    conduct.register(plan, opened)
            except StoreError as error:
                raise Failed(str(error)) from None
        with _interruptible(shown.say) as interrupted:
            try:
                study = conduct.conduct(plan, opened, out, shown.event, interrupted)
                # An interrupt that comes now does not take back what is finished.
                files = conduct.deliver_files(study, out)
            except (StoreError, OSError) as error:
                raise Failed(f"{error}; `autotune resume {plan.spec.name}`", EXIT_STOPPED) from None
            except NoResources as error:
                raise Failed(str(error)) from None
    code = _conclude(study, files, as_json)
    _check_readable(plan.spec.name, store, out)
    return code


def _check_readable(name: str, store: str | None, out: Path) -> None:
    """What a driver holds in memory can outlive what somebody did to the file meanwhile."""
    from autotune.store import StoreError

    try:
        with open_store(store, out, must_exist=True) as opened:
            opened.load(name)
    except (Failed, StoreError) as error:
        said = error.message if isinstance(error, Failed) else str(error)
        whole = out / name / "study.json"
        raise Failed(f"{said}; {whole} holds the whole study", EXIT_STOPPED) from None


def _progress(plan: Plan, as_json: bool):  # type: ignore[no-untyped-def]
    return make_progress(plan, quiet=as_json)


def _check_writable(out: Path) -> None:
    """Find out before any trial, not after the last one."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / f".writable-{os.getpid()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise Failed(f"cannot write to {out}: {error.strerror}; choose another --out") from None


@contextmanager
def _interruptible(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C, SIGTERM or hang-up asks the study to stop, the second ends it at once."""
    asked: list[float] = []

    def handle(_number: int, _frame: FrameType | None) -> None:
        asked.append(time.monotonic())
        if len(asked) > 1:
            from autotune import launch

            launch.kill_everything()
            os._exit(EXIT_INTERRUPTED)
        say("stopping; what is finished is kept (press Ctrl-C again to force)")

    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else started with nohup
        wanted.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show_plan(plan: Plan, as_json: bool) -> None:
    spec, free = plan.spec, plan.space.free()
    summary = {
        "study": spec.name,
        "model": spec.model_name,
        "task": spec.task,
        "runner": spec.runner,
        "device": plan.hardware.device,
        "gpus": len(plan.hardware.gpus),
        "workers": spec.workers,
        "objectives": [f"{o.metric}:{o.direction}" for o in spec.objectives],
        "limits": [str(limit) for limit in spec.limits],
        "budget_seconds": spec.budget.seconds,
        "trials": spec.budget.trials,
        "strategy": spec.strategy,
        "free_knobs": [k.name for k in free],
        "fixed_knobs": dict(plan.space.fixed),
        "notices": list(plan.notices),
    }
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    for key, value in summary.items():
        if key == "free_knobs":
            click.echo(f"{key:>15}: {len(free)} ({', '.join(k.name for k in free[:6])}, ...)")
        elif value not in (None, [], {}):
            click.echo(f"{key:>15}: {value}")


def _conclude(study: Study, files: dict[str, str], as_json: bool) -> int:
    from autotune.summary import summary, summary_lines

    if as_json:
        click.echo(json.dumps({**summary(study), "files": files}, indent=2))
    else:
        for what, path in files.items():
            click.echo(f"{what:>12}  {path}")
        for line in summary_lines(study):  # last, so that the last line says why it ended
            click.echo(line)
    sys.stdout.flush()
    return exit_code(study)


def exit_code(study: Study) -> int:
    """What a study's end means to the caller."""
    reason = study.outcome.stopped_because if study.outcome else ""
    if study.state == "interrupted" or reason.startswith("interrupted"):
        return EXIT_INTERRUPTED
    if study.state == "failed":
        return EXIT_STOPPED
    if study.state == "running":
        return 0  # another driver goes on with it
    if study.outcome is None or study.outcome.best is None:
        return EXIT_NOTHING_FEASIBLE
    return 0
