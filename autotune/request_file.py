"""Study files: a request as YAML, with the names of the command line's options."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autotune import yaml_lines
from autotune.request import Request
from autotune.space import SpaceError, nearest
from autotune.study import StudyError

# As the command line spells them -> field of Request.
_ALIASES = {
    "objective": "objectives",
    "limit": "limits",
    "set": "settings",
    "space": "space_files",
    "from": "warm_start",
    "env": "environ",
    "fault": "faults",
    "option": "options",
    "trial-timeout": "trial_timeout",
    "gpus-per-trial": "gpus_per_trial",
    "cpus-per-trial": "cpus_per_trial",
    "ray-address": "ray_address",
}
_FIELDS = {f.name: f for f in dataclasses.fields(Request)}
_FREE_KEYS = ("workload", "environ", "options")  # mappings whose keys no catalogue knows
_WORD = re.compile(r"[\w.*-]{2,}")
_NUMBERS: dict[str, tuple[type, ...]] = {
    "trials": (int,),
    "workers": (int,),
    "gpus_per_trial": (int,),
    "cpus_per_trial": (int,),
    "seed": (int,),
    "price": (int, float),
}


def load(path: Path, overrides: Mapping[str, Any]) -> Request:
    """The request in a file, with what the command line says on top.

    Raises SpaceError with file, line, key and the nearest known name.
    """
    document = yaml_lines.load(path)
    fields: dict[str, Any] = {}
    for key, value in document.items():
        name = _ALIASES.get(str(key), str(key))
        where = f"{path}:{yaml_lines.line_of(document, key)}"
        if name not in _FIELDS:
            known = [*_FIELDS, *_ALIASES]
            raise SpaceError(f"{where}: unknown key {key}{nearest(str(key), known)}")
        _check_level(name, value, path)
        fields[name] = _field(name, value, where, str(key))
    fields |= overrides
    if "model" not in fields:
        raise SpaceError(f"{path}: needs a key 'model'")
    fields["space_files"] = tuple(
        f
        if Path(f).is_absolute() or f in overrides.get("space_files", ())
        else str(path.parent / f)
        for f in fields.get("space_files", ())
    )
    return Request(**fields)


@contextmanager
def locating(path: Path, overrides: Mapping[str, Any]) -> Iterator[None]:
    """Problems that are found in here name the line of the file that caused them."""
    try:
        yield
    except (StudyError, SpaceError) as error:
        raise SpaceError(_located(path, str(error), overrides)) from None


def _located(path: Path, problem: str, overrides: Mapping[str, Any]) -> str:
    """A problem found only when the request was checked as a whole, with the line of its cause.

    The cause is the entry of the file whose own words the problem repeats.
    """
    said = problem.partition("; did you mean")[0]
    if re.match(r".+\.ya?ml:\d", said):
        return problem  # of a space file, which has a line of its own
    found, most = "", 0
    for name, line, words in _entries(yaml_lines.load(path)):
        named = f"--{name.replace('_', '-')}" in said
        hits = [
            len(w) for w in _WORD.findall(words) if re.search(rf"(?<!\w){re.escape(w)}(?!\w)", said)
        ]
        score = max(hits, default=0) + 20 * named
        if name not in overrides and score > most:
            found, most = f"{path}:{line}: ", score
    return found + problem if found or overrides else f"{path}: {problem}"


def _entries(document: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Field, line and text of every value in a file."""
    for key, value in document.items():
        name, line = _ALIASES.get(str(key), str(key)), yaml_lines.line_of(document, key)
        if isinstance(value, Mapping):
            for k, v in value.items():
                yield name, yaml_lines.line_of(value, k), f"{k}={_text(v)}"
        else:
            for item in value if isinstance(value, list) else [value]:
                yield name, line, _text(item)


def _check_level(name: str, value: Any, path: Path) -> None:
    """A key of the top level that slipped into another one would be dropped without a word."""
    if not isinstance(value, Mapping) or (name == "settings" and value):
        return  # a knob may be called like a key; an unknown one is refused later
    for key in value:
        if _ALIASES.get(str(key), str(key)) in _FIELDS and (
            name in _FREE_KEYS or not isinstance(_FIELDS[name].default, tuple)
        ):
            where = f"{path}:{yaml_lines.line_of(value, key)}"
            raise SpaceError(f"{where}: {key} belongs to the top level, not into {name}")


def _field(name: str, value: Any, where: str, written: str) -> Any:
    if name in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, _NUMBERS[name]):
            raise SpaceError(f"{where}: {written} should be a number, not {value!r}")
        return value
    if isinstance(_FIELDS[name].default, tuple):
        return _texts(written, value, where)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise SpaceError(f"{where}: {written} should be text, not {value!r}")
    return value


def _texts(written: str, value: Any, where: str) -> tuple[str, ...]:
    """A list of texts; a mapping stands for KEY=VALUE entries, a single text for one entry."""
    if isinstance(value, Mapping):
        if nested := [k for k, v in value.items() if isinstance(v, Mapping | list)]:
            raise SpaceError(f"{where}: {written}.{nested[0]} should be a single value")
        return tuple(f"{k}={_text(v)}" for k, v in value.items())
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise SpaceError(f"{where}: {written} should be a list of texts, not {value!r}")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
