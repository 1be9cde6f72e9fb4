"""Command lines with knobs in them: ``--lr {lr}``, ``{compile?--compile}``, ``{out}``.

No shell: each word of the template stays one argument, whatever a value holds.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence

from autotune.trial import KnobValue

# Filled in for every trial, beside its knobs and the facts of the workload.
BUILT_IN = ("out", "folder", "seed", "number", "model", "task", "port")
_PLACE = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w.\-]*)(?:\?((?:[^{}]|\{\})*))?\}")
_OFF = (False, "unset")


class BadTemplate(ValueError):
    """A placeholder stands for nothing, a knob goes nowhere, or there is no such program."""


def names(argv: Sequence[str]) -> set[str]:
    """Every name that a placeholder mentions."""
    return {match[1] for word in argv for match in _PLACE.finditer(word) if match[1]}


def fill(argv: Sequence[str], values: Mapping[str, KnobValue]) -> list[str]:
    """The arguments of one trial.

    ``{name}`` is the value; ``{name?text}`` is the text where the knob is active and neither
    false nor unset (``{}`` in it is the value), and a word that consists of nothing else vanishes
    otherwise. ``{{`` and ``}}`` are braces. Raises BadTemplate.
    """
    return list(_filled(argv, values))


def _filled(argv: Sequence[str], values: Mapping[str, KnobValue]) -> Iterator[str]:
    for word in argv:
        text = _PLACE.sub(lambda match: _value(match, values), word)
        whole = _PLACE.fullmatch(word)
        if text or not (whole and whole[2] is not None):
            yield text


def _value(match: re.Match[str], values: Mapping[str, KnobValue]) -> str:
    name, optional = match[1], match[2]
    if name is None:
        return match[0][0]
    if optional is not None:
        is_on = name in values and values[name] not in _OFF
        return optional.replace("{}", text_of(values[name])) if is_on else ""
    if name not in values:
        raise BadTemplate(f"{{{name}}} is no knob that is active here; write {{{name}?...}}")
    return text_of(values[name])


def text_of(value: KnobValue) -> str:
    """As YAML and most programs write it: true and false in small letters."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check(argv: Sequence[str], known: Sequence[str], arguments: Sequence[str]) -> None:
    """Raise BadTemplate for what no trial could run: a missing program, an unknown name, or one of
    ``arguments`` (free knobs that only the command line can pass on) that it does not mention."""
    if not argv or shutil.which(argv[0]) is None:
        raise BadTemplate(f"there is no program {argv[0] if argv else ''!r}; give its path")
    mentioned = names(argv)
    if unknown := sorted(mentioned - {*known, *BUILT_IN}):
        raise BadTemplate(
            f"{{{unknown[0]}}} is no knob here; known: {_listed([*known, *BUILT_IN])}"
        )
    if unread := [name for name in arguments if name not in mentioned]:
        raise BadTemplate(f"nothing passes {unread[0]} on; add {{{unread[0]}}} or exclude it")


def _listed(known: Sequence[str]) -> str:
    return ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
