"""Study files: a request as YAML, with the names of the command line's options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune import yaml_lines
from autotune.request import Request
from autotune.space import SpaceError, nearest

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
    "ray-address": "ray_address",
}
_FIELDS = {f.name: f for f in dataclasses.fields(Request)}
_NUMBERS: dict[str, tuple[type, ...]] = {
    "trials": (int,),
    "workers": (int,),
    "gpus_per_trial": (int,),
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
        fields[name] = _field(name, value, where)
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


def _field(name: str, value: Any, where: str) -> Any:
    if name in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, _NUMBERS[name]):
            raise SpaceError(f"{where}: {name} should be a number, not {value!r}")
        return value
    if isinstance(_FIELDS[name].default, tuple):
        return _texts(name, value, where)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise SpaceError(f"{where}: {name} should be text, not {value!r}")
    return value


def _texts(name: str, value: Any, where: str) -> tuple[str, ...]:
    """A list of texts; a mapping stands for KEY=VALUE entries, a single text for one entry."""
    if isinstance(value, Mapping):
        return tuple(f"{k}={_text(v)}" for k, v in value.items())
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise SpaceError(f"{where}: {name} should be a list of texts, not {value!r}")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
