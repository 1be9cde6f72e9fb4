"""Tells a fault that no configuration can escape from a space that is merely hard."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autotune.trial import Status, TrialRecord

_UNRELATED = 5  # failures in a row, alike, that make the machine the suspect
_VARYING = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?|/[^\s'\"]+")
# These say something about the configuration, never about the machine as a whole.
_OF_THE_CONFIGURATION = {
    Status.COMPLETE,
    Status.STOPPED_EARLY,
    Status.INFEASIBLE,
    Status.BAD_OUTPUT,
    Status.NON_FINITE,
}


def signature(record: TrialRecord) -> str:
    """The failure without its numbers, addresses and paths, so that equal causes compare equal."""
    reason = record.failure.reason if record.failure else ""
    return f"{record.status}: {_VARYING.sub('#', reason)}"


def alike_failures(records: Sequence[TrialRecord]) -> str | None:
    """The signature shared by the last few records, oldest first, or None.

    Only configurations that differ count: repeats of one prove nothing about the others.
    """
    tail = [r for r in records if r.status is not Status.INFEASIBLE][-_UNRELATED:]
    distinct = {tuple(sorted((k, repr(v)) for k, v in r.spec.configuration.items())) for r in tail}
    if len(distinct) < _UNRELATED or any(r.status in _OF_THE_CONFIGURATION for r in tail):
        return None
    shared = {signature(record) for record in tail}
    return shared.pop() if len(shared) == 1 else None


def verdict(records: Sequence[TrialRecord]) -> str | None:
    """Why to stop, or None to go on.

    Stops when the last few unrelated configurations failed alike and the plainest one did too:
    either the default itself failed that way, or nothing has ever succeeded.
    """
    shared = alike_failures(records)
    if shared is None:
        return None
    defaults = [r for r in records if r.spec.stage in ("default", "canary")]
    default_fails = bool(defaults) and signature(defaults[-1]) == shared
    if default_fails or not any(r.status is Status.COMPLETE for r in records):
        return f"the last {_UNRELATED} configurations, unrelated, all failed alike ({shared})"
    return None


def wants_canary(records: Sequence[TrialRecord]) -> bool:
    """Whether the default should be run once more, to tell a broken machine from a hard region."""
    shared = alike_failures(records)
    return shared is not None and verdict(records) is None and records[-1].spec.stage != "canary"
