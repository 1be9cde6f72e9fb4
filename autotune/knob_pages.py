"""The catalogue as a Markdown page, with what an audit found beside each knob."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autotune.space import Knob

_HEAD = """# Knobs

Written by `autotune knobs list --markdown` from the YAML in `search_spaces/`; do not edit by hand.
A default is the upstream one (versions in brackets where they differ). *When* says which other
settings make a knob mean something, *needs* which hosts and packages have it. What is not here, and
why: [knobs-left-out.md](knobs-left-out.md).
"""
_COLUMNS = ("knob", "values", "default", "when", "needs", "applied by", "restart", "what it does")


def markdown(knobs: Sequence[Knob], findings: Iterable[Mapping[str, object]] = ()) -> str:
    """One table per subsystem (the part of a name before its first dot).

    ``findings`` are those of an ``audit.json``; with them a column tells what was tried, what was
    read back, and the label.
    """
    seen = {str(f["knob"]): f for f in findings}
    columns = (*_COLUMNS, "audit") if seen else _COLUMNS
    groups: dict[str, list[Knob]] = {}
    for knob in knobs:
        groups.setdefault(knob.name.split(".")[0], []).append(knob)
    parts = [_HEAD, f"{len(knobs)} knobs in {len(groups)} groups.\n"]
    for group, members in sorted(groups.items()):
        parts.append(f"## {group} ({len(members)})\n")
        parts.append(_row(columns))
        parts.append(_row("---" for _ in columns))
        for knob in sorted(members, key=lambda k: k.name):
            audited = (_audited(seen.get(knob.name)),) if seen else ()
            parts.append(_row((*_cells(knob), *audited)))
        parts.append("")
    return "\n".join(parts)


def _cells(knob: Knob) -> tuple[str, ...]:
    applied = ", ".join(f"{kind} `{target}`" for kind, target in knob.apply.items())
    versions = "".join(f" ({_text(v)} for {version})" for version, v in knob.default_by.items())
    return (
        f"`{knob.name}`",
        str(knob.domain),
        _text(knob.default) + versions,
        f"`{knob.when.text}`" if knob.when else "",
        ", ".join(knob.needs),
        applied,
        knob.restart,
        knob.summary,
    )


def _audited(finding: Mapping[str, object] | None) -> str:
    if finding is None:
        return ""
    return f"{finding['label']}: {_text(finding['tried'])}, read {_text(finding['read_back'])}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"
