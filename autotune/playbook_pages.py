"""The playbook as files: JSON, Markdown, and HTML by the room reports."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from autotune import hardware
from autotune.atomic_file import write_atomically
from autotune.playbook_verdict import Arm, Entry, as_json
from autotune.rooms import child_environ
from autotune.study import StudyError

__all__ = ["as_json", "markdown", "write"]


def write(entries: Sequence[Entry], model: str, out: Path) -> Path:
    """Write playbook.json, .md and .html into OUT/playbook-MODEL; the folder."""
    folder = out / f"playbook-{Path(model).name}"
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "model": model,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "autotune " + " ".join(sys.argv[1:]),
        "host": hardware.fingerprint([]),
    }
    data = {**facts, "entries": as_json(entries)}
    write_atomically(folder / "playbook.json", json.dumps(data, indent=1, allow_nan=False))
    write_atomically(folder / "playbook.md", markdown(entries, model, str(facts["date"])))
    _page(folder)
    return folder


def _page(folder: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "reports", "--playbook", str(folder / "playbook.json")),
            *("-o", str(folder / "playbook.html")),
        ],
        env=child_environ({}),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise StudyError(f"the page could not be written: {done.stderr.strip()[-300:]}")


def markdown(entries: Sequence[Entry], model: str, date: str) -> str:
    """A table of verdicts, then the arms of each claim."""
    lines = [
        f"# Playbook: {model}",
        "",
        f"Measured {date}. A ratio is over the first arm, above 1 is better; 95 % interval.",
        "",
        _row("claim", "what is claimed", "claimed", "measured", "verdict"),
        _row(*["---"] * 5),
        *(_row(e.id, e.says, e.claimed, _headline(e), _verdict(e)) for e in entries),
    ]
    for entry in entries:
        if entry.arms:
            lines += ["", *_details(entry)]
    return "\n".join(lines) + "\n"


def _details(entry: Entry) -> Iterable[str]:
    yield f"## {entry.id} {entry.technique}"
    yield ""
    yield f"`{entry.command}` · {entry.metric}"
    yield ""
    last = ("over the one before",) if entry.ladder else ()
    columns = ("arm", "repeats", entry.metric, "ratio", *last, "bound by", "also")
    yield _row(*columns)
    yield _row(*["---"] * len(columns))
    for arm in entry.arms:
        step = ("" if arm.over_previous is None else f"{arm.over_previous:.3f}",)
        also = ", ".join(f"{name} {value:.4g}" for name, value in arm.also.items())
        middle = arm.failure if arm.median is None else f"{arm.median:.4g}"
        cells = (arm.label, str(arm.repeats), middle, _ratio(arm))
        yield _row(*cells, *(step if entry.ladder else ()), arm.bound, also)


def _headline(entry: Entry) -> str:
    return _ratio(entry.arms[-1]) if entry.arms else ""


def _verdict(entry: Entry) -> str:
    return f"{entry.verdict}: {entry.reason}" if entry.reason else entry.verdict


def _ratio(arm: Arm) -> str:
    if arm.ratio is None:
        return ""
    return f"{arm.ratio:.3f} ({arm.low:.3f} to {arm.high:.3f})"


def _row(*cells: str) -> str:
    return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"
