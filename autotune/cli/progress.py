"""What a person sees while a study runs: a bar on a terminal, a line per trial elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import click

from autotune.plan import Plan
from autotune.session import Event
from autotune.study import Objective
from autotune.trial import Status, TrialRecord


class Shown(Protocol):
    """Takes events and messages."""

    def event(self, event: Event) -> None:
        """Show an event of the study."""

    def say(self, text: str) -> None:
        """Show a message of the command itself."""


class Tally:
    """Counts and the best value so far."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.done = 0
        self.failures: Counter[str] = Counter()
        self.best: float | None = None
        self.started = time.monotonic()

    @property
    def objective(self) -> Objective:
        return self.plan.spec.objectives[0]

    def add(self, record: TrialRecord) -> None:
        """Count a record; the best is of complete trials that keep every limit."""
        self.done += 1
        if record.status is not Status.COMPLETE:
            self.failures[record.status] += 1
            return
        value = record.metric(self.objective.metric)
        kept = all(lim.is_met(record.metric(lim.metric)) for lim in self.plan.spec.limits)
        if value is None or not kept:
            return
        if self.best is None or value * self.objective.sign < self.best * self.objective.sign:
            self.best = value

    def share_done(self) -> float:
        """Of the budget, by time or by trials, whichever is further."""
        budget = self.plan.spec.budget
        shares = [0.0]
        if budget.seconds:
            shares.append((time.monotonic() - self.started) / budget.seconds)
        if budget.trials:
            shares.append(self.done / budget.trials)
        return min(1.0, max(shares))

    def failed_text(self) -> str:
        """``3 failed (2 OUT_OF_MEMORY, 1 CRASHED)`` or an empty string."""
        if not self.failures:
            return ""
        parts = ", ".join(f"{n} {status}" for status, n in self.failures.most_common())
        return f"{sum(self.failures.values())} failed ({parts})"


def trial_line(record: TrialRecord, objective: Objective) -> str:
    """One line about a finished trial."""
    value = record.metric(objective.metric)
    head = f"trial {record.spec.number:>4} {record.spec.stage:<10} {record.status:<13}"
    if value is not None:
        return f"{head} {objective.metric}={value:,.4g} in {record.wall_seconds:.1f}s"
    reason, hint = (record.failure.reason, record.failure.hint) if record.failure else ("", "")
    return f"{head} {reason[:160]}" + (f" ({hint[:120]})" if hint else "")


class _Lines:
    """For logs: no control codes, about one line per trial."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally

    def event(self, event: Event) -> None:
        if event.record is not None:
            self.tally.add(event.record)
            self.say(trial_line(event.record, self.tally.objective))
        elif event.kind in ("notice", "stage"):
            self.say(event.text)

    def say(self, text: str) -> None:
        click.echo(text, err=True)


class _Quiet(_Lines):
    """For --json: notices still reach stderr, trials do not."""

    def event(self, event: Event) -> None:
        if event.record is not None:
            self.tally.add(event.record)
        elif event.kind == "notice":
            self.say(event.text)


class _Bar:
    """For terminals: a rich progress bar with the best so far, failures and the time left."""

    def __init__(self, tally: Tally) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.tally = tally
        self.stage = "starting"
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self.task = self.progress.add_task("starting", total=1.0, detail="")

    def event(self, event: Event) -> None:
        if event.kind == "stage":
            self.stage = event.text
        if event.kind == "notice":
            self.say(event.text)
        if event.record is not None:
            self.tally.add(event.record)
            self.say(trial_line(event.record, self.tally.objective))
        self.progress.update(
            self.task,
            description=self.stage[:60],
            completed=self.tally.share_done(),
            detail=self._detail(event.running),
        )

    def say(self, text: str) -> None:
        self.progress.console.print(text, markup=False, highlight=False)

    def _detail(self, running: int) -> str:
        tally = self.tally
        parts = [f"{tally.done} done, {running} running", tally.failed_text(), self._eta()]
        if tally.best is not None:
            parts.insert(1, f"best {tally.objective.metric} {tally.best:,.4g}")
        return " | ".join(part for part in parts if part)

    def _eta(self) -> str:
        share = self.tally.share_done()
        if share < 0.02:
            return ""
        left = (time.monotonic() - self.tally.started) * (1 - share) / share
        return f"about {left / 60:.0f} min left" if left > 90 else f"about {left:.0f} s left"


@contextmanager
def make_progress(plan: Plan, *, quiet: bool) -> Iterator[Shown]:
    """The right kind of progress for where stderr goes."""
    tally = Tally(plan)
    if quiet:
        yield _Quiet(tally)
    elif sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        bar = _Bar(tally)
        with bar.progress:
            yield bar
    else:
        yield _Lines(tally)
