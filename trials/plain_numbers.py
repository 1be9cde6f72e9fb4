"""Numbers of any library as plain ones, with equal value; whatever is no number is refused."""

from __future__ import annotations

import dataclasses
import decimal
import numbers
from collections.abc import Mapping
from typing import Any

from autotune.trial import Measurement
from trials.errors import TrialError


class NotANumber(TrialError):
    """A metric is something else; the message names key and type."""

    hint = "a metric is one plain number, or null when it could not be measured"


def plain(value: Any, where: str) -> int | float | None:
    """Python, NumPy and tensor scalars, Decimal and Fraction; true and false count as 1 and 0."""
    if value is None:
        return None
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, numbers.Real | decimal.Decimal):
        return float(value)
    if getattr(value, "ndim", None) == 0 and callable(item := getattr(value, "item", None)):
        return plain(item(), where)
    raise NotANumber(f"{where} is a {type(value).__name__}, not a number")


def measured(measurement: Measurement) -> Measurement:
    """The measurement with plain numbers only. Raises NotANumber."""
    return dataclasses.replace(
        measurement,
        metrics=_plain(measurement.metrics, "metric"),
        phases=_known(measurement.phases, "phase"),
        samples={
            name: tuple(_known(dict(enumerate(values)), f"sample of {name}").values())
            for name, values in measurement.samples.items()
        },
    )


def _plain(values: Mapping[Any, Any], what: str) -> dict[Any, int | float | None]:
    return {name: plain(value, f"{what} {name}") for name, value in values.items()}


def _known(values: Mapping[Any, Any], what: str) -> dict[Any, int | float]:
    found = _plain(values, what)
    if missing := [name for name, value in found.items() if value is None]:
        raise NotANumber(f"{what} {missing[0]} is null, not a number")
    return {name: value for name, value in found.items() if value is not None}


def plain_or_text(value: Any) -> Any:
    """For what a trial tells beside its numbers: nothing there is worth failing for."""
    try:
        return plain(value, "")
    except NotANumber:
        return value.tolist() if hasattr(value, "tolist") else str(value)
