"""What a study leaves behind: study.json, report.html and best.yaml, each whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from autotune import export
from autotune.rooms import child_environ
from autotune.study import Study
from autotune.trial import to_json

_LONGEST_BUILD_SECONDS = 300


class ReportFailed(RuntimeError):
    """The reports program did not write a page; the message holds its last line."""


def study_json(study: Study, target: Path) -> None:
    """Write study.json atomically."""
    export.write_atomically(target, json.dumps(to_json(study), allow_nan=False))


def report(study: Study, target: Path, *, strict: bool = False) -> None:
    """Build the HTML report in a child; raises ReportFailed and leaves no half-written file."""
    _run_reports([study], ["-o", str(target.absolute()), *(["--strict"] if strict else [])])


def compare_page(studies: Sequence[Study], target: Path) -> None:
    """Build the page that holds two studies side by side."""
    _run_reports(studies, ["-o", str(target.absolute())])


def _run_reports(studies: Sequence[Study], arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="autotune-report-") as folder:
        paths = [Path(folder) / f"study-{i}.json" for i in range(len(studies))]
        for study, path in zip(studies, paths, strict=True):
            study_json(study, path)
        more = ["--compare"] if len(paths) > 1 else _handed_over(studies[0], Path(folder))
        command = [sys.executable, "-m", "reports", *more, *map(str, paths), *arguments]
        try:
            done = subprocess.run(
                command,
                env=child_environ({}),
                capture_output=True,
                text=True,
                timeout=_LONGEST_BUILD_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise ReportFailed(f"no report within {_LONGEST_BUILD_SECONDS} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ReportFailed(f"the report could not be built: {last}")


def _handed_over(study: Study, folder: Path) -> list[str]:
    """The page hands over best.yaml word for word as the command line does."""
    if study.outcome is None or study.outcome.best is None:
        return []
    export.write_atomically(folder / "best.yaml", export.text(study, "yaml"))
    return ["--best-yaml", str(folder / "best.yaml")]


def everything(study: Study, folder: Path) -> dict[str, str]:
    """Write all that can be written; what failed is named with its reason instead of a path."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, str] = {}
    study_json(study, folder / "study.json")
    files["study"] = os.fspath(folder / "study.json")
    try:
        report(study, folder / "report.html")
        files["report"] = os.fspath(folder / "report.html")
    except ReportFailed as error:
        files["report"] = f"missing: {error}"
    if study.outcome is not None and study.outcome.best is not None:
        export.write_atomically(folder / "best.yaml", export.text(study, "yaml"))
        files["best"] = os.fspath(folder / "best.yaml")
    return files
