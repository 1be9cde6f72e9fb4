"""measurement.json: the one file by which a trial program answers."""

from __future__ import annotations

import json
import os
from pathlib import Path

from autotune.trial import Failure, Measurement, Status, to_json
from trials.plain_numbers import plain_or_text


def write(
    folder: Path, status: Status, measurement: Measurement | None, failure: Failure | None
) -> None:
    """Write it whole or not at all."""
    data = {
        "status": str(status),
        "measurement": to_json(measurement),
        "failure": to_json(failure),
    }
    temporary = folder / "measurement.json.tmp"
    temporary.write_text(json.dumps(data, allow_nan=False, default=plain_or_text))
    os.replace(temporary, folder / "measurement.json")
