"""Records as the text that is stored, and back."""

from __future__ import annotations

import json
from typing import Any

from autotune.store.fault import DamagedError, StoreError
from autotune.trial import BadRecord, TrialRecord, record_from_json, to_json


def text_of(value: Any) -> str:
    """Strict JSON of a vocabulary object; ASCII, so that no database trips over any text."""
    try:
        return json.dumps(to_json(value), allow_nan=False, separators=(",", ":"), default=_scalar)
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"a {type(value).__name__} holds something that is no plain value: {error}"
        ) from None


def _scalar(value: Any) -> Any:
    """What a numeric library calls a number."""
    if callable(item := getattr(value, "item", None)):
        return to_json(item())
    raise TypeError(f"{type(value).__name__} {value!r}"[:200])


def record_of(text: str) -> TrialRecord:
    """Rebuild a record; DamagedError when the text is not what was stored."""
    try:
        return record_from_json(json.loads(text))
    except (BadRecord, ValueError, TypeError, AttributeError, KeyError) as error:
        raise DamagedError(f"a stored trial cannot be read ({error})"[:200]) from None


def trial_row(study_id: int, record: TrialRecord) -> dict[str, Any]:
    """A record as a row of the table of trials."""
    return {
        "study_id": study_id,
        "number": record.spec.number,
        "status": str(record.status),
        "stage": record.spec.stage,
        "document": text_of(record),
    }
