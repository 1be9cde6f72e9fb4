"""Records and studies as the text that is stored, and back."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

from autotune.store.fault import DamagedError, StoreError
from autotune.study import Outcome, StudySpec
from autotune.study_file import outcome_from_json, study_spec_from_json
from autotune.trial import BadRecord, TrialRecord, record_from_json, to_json

T = TypeVar("T")


def text_of(value: Any) -> str:
    """Strict JSON of a vocabulary object; ASCII, so that no database trips over any text."""
    try:
        return json.dumps(to_json(value), allow_nan=False, separators=(",", ":"), default=_scalar)
    except (TypeError, ValueError) as error:
        raise StoreError(f"cannot store a {type(value).__name__}: {error}") from None


def _scalar(value: Any) -> Any:
    """What a numeric library calls a number."""
    if callable(item := getattr(value, "item", None)):
        return to_json(item())
    raise TypeError(f"{value!r} is a {type(value).__name__}, no plain value"[:200])


def checksum_of(text: str) -> int:
    """Of a document. A changed digit is valid JSON too, but not the same trial."""
    return zlib.crc32(text.encode())


def trial_row(study_id: int, record: TrialRecord) -> dict[str, Any]:
    """A record as a row of the table of trials."""
    document = text_of(record)
    return {
        "study_id": study_id,
        "number": record.spec.number,
        "status": str(record.status),
        "stage": record.spec.stage,
        "document": document,
        "checksum": checksum_of(document),
    }


def document_row(study_id: int, kind: str, text: str) -> dict[str, Any]:
    """The spec or the outcome of a study as a row of the table of documents."""
    return {
        "study_id": study_id,
        "kind": kind,
        "document": text,
        "checksum": checksum_of(text),
    }


def record_of(text: str, checksum: int | None) -> TrialRecord:
    """Rebuild a record; DamagedError when the text is not what was stored."""
    return _rebuilt(record_from_json, text, checksum, "trial")


def spec_of(text: str, checksum: int | None) -> StudySpec:
    """Rebuild what was asked; DamagedError when the text is not what was stored."""
    return _rebuilt(study_spec_from_json, text, checksum, "study")


def outcome_of(text: str, checksum: int | None) -> Outcome:
    """Rebuild what was concluded; DamagedError when the text is not what was stored."""
    return _rebuilt(outcome_from_json, text, checksum, "outcome")


def _rebuilt(rebuild: Callable[[Any], T], text: str, checksum: int | None, what: str) -> T:
    if checksum is not None and checksum_of(text) != checksum:
        raise DamagedError(f"a stored {what} does not match its checksum")
    try:
        return rebuild(json.loads(text))
    except (BadRecord, ValueError, TypeError, AttributeError, KeyError) as error:
        raise DamagedError(f"a stored {what} cannot be read: {error}"[:200]) from None
