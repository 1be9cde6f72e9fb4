"""What each runner reads beside its knobs. A word that nothing would read is refused: dropped
without a word, it would leave the user with a default that was not asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence

from autotune.rooms import child_environ
from autotune.space import SearchSpace, nearest
from autotune.study import StudyError

# Runner -> its options; those that are not here check their options themselves.
OPTIONS: dict[str, tuple[str, ...]] = {
    "toy": ("sleep", "noise", "effects", "requests", "tokens", "elapsed"),
    "command": (),
}
# (runner, task) -> facts of the job; a command names its own in its template.
FACTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("toy", "train"): (),
    ("toy", "serve"): (),
    ("torch", "train"): ("schedule_steps",),
}


def check_options(runner: str, given: Iterable[str]) -> None:
    """Raises StudyError for an option that the runner does not read."""
    known = OPTIONS.get(runner)
    for name in given:
        if known is not None and name not in known:
            there = f"it has {', '.join(known)}" if known else "it has none"
            close = nearest(name, known)
            raise StudyError(f"--option {name}: runner {runner} has no such option{close}; {there}")


def check_facts(
    runner: str, task: str, given: Mapping[str, str], space: SearchSpace, mentioned: Iterable[str]
) -> None:
    """Raises StudyError for a fact of the job that nothing would read."""
    known = mentioned if runner == "command" else FACTS.get((runner, task))
    knobs = {knob.name for knob in space.knobs}
    for name, value in given.items():
        if name in knobs:
            raise StudyError(f"--workload {name} is a knob; use --set {name}={value}")
        if known is not None and name not in (names := sorted(known)):
            there = f"known are {', '.join(names)}" if names else "none are known"
            raise StudyError(
                f"--workload {name}: nothing in runner {runner} reads it{nearest(name, names)}; "
                f"{there}"
            )


def check_faults(runner: str, faults: Sequence[str], space: SearchSpace) -> None:
    """Raises StudyError unless the toy knows every fault, and the space what its condition names.

    The toy's own program is asked: trials are no business of this package.
    """
    if not faults:
        return
    if runner != "toy":
        raise StudyError(f"--fault is for runner toy, not for {runner}")
    done = subprocess.run(
        [sys.executable, "-m", "trials.toy_faults", *(k.name for k in space.knobs), "--", *faults],
        env=child_environ({}),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise StudyError(f"--fault {done.stdout.strip() or done.stderr.strip()[-300:]}")
