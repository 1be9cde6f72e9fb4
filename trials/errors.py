"""The ways a trial can end that it understands itself."""

from __future__ import annotations

from autotune.trial import Measurement, Status


class TrialError(Exception):
    """Ends a trial with a status; the message is the reason shown to people."""

    status = Status.CRASHED
    hint = ""


class Unsupported(TrialError):
    """A setting is illegal on this device or version, or was not read back as set."""

    status = Status.UNSUPPORTED


class NonFinite(TrialError):
    """A loss or metric is nan or inf."""

    status = Status.NON_FINITE


class BadOutput(TrialError):
    """The quality gate was not passed."""

    status = Status.BAD_OUTPUT


class OutOfMemory(TrialError):
    """The device has no room."""

    status = Status.OUT_OF_MEMORY


class HostOutOfMemory(TrialError):
    """The host has no room."""

    status = Status.HOST_OUT_OF_MEMORY


class StoppedEarly(TrialError):
    """The trial is clearly behind the front it was given; ``seen`` is what it had measured."""

    status = Status.STOPPED_EARLY

    def __init__(self, reason: str, seen: Measurement | None = None) -> None:
        super().__init__(reason)
        self.seen = seen
