"""Exports that a user's own program can use: a Python file, a shell script, a file of variables."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from autotune import environment
from autotune.export_choice import UNSET, Choice, ExportError
from autotune.trial import KnobValue

_PYTHON = '''\
"""Settings found by autotune. Needs nothing but Python, and torch for the settings of torch.

    import {module}
    {module}.apply()  # before anything else imports torch
    {module}.ARGUMENTS["..."]
"""

import importlib
import os

STUDY = {study!r}
TRIAL = {trial!r}
MODEL = {model!r}
VERDICT = {verdict!r}

# None: the variable must be absent.
ENVIRONMENT = {environment}

# Attributes to set once torch is imported.
TORCH = {torch}

# What the program itself has to act on.
ARGUMENTS = {arguments}

# Flags of the serving engine.
ENGINE = {engine}


def apply():
    """Set the environment and the flags of torch."""
    for name, value in ENVIRONMENT.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    for path, value in TORCH.items():
        owner, name = _owner(path)
        setattr(owner, name, value)


def _owner(path):
    *parents, name = path.split(".")
    owner = importlib.import_module(parents[0])
    for i, parent in enumerate(parents[1:], start=2):
        if not hasattr(owner, parent):
            importlib.import_module(".".join(parents[:i]))
        owner = getattr(owner, parent)
    if not hasattr(owner, name):
        raise AttributeError(f"this version of torch has no {{path}}")
    return owner, name


if __name__ == "__main__":
    for title in ("ENVIRONMENT", "TORCH", "ARGUMENTS", "ENGINE"):
        for key, value in globals()[title].items():
            print(f"{{title.lower():>11}}  {{key}} = {{value!r}}")
'''


def python(choice: Choice) -> str:
    """A file without dependencies: ``apply()`` and ``ARGUMENTS``."""
    spec = choice.study.spec
    return _PYTHON.format(
        module="best",
        study=spec.name,
        trial=choice.number,
        model=spec.model_name,
        verdict=choice.verdict,
        environment=_literal(variables(choice)),
        torch=_literal(_torch(choice)),
        arguments=_literal(choice.settings("argument")),
        engine=_literal(_live(choice.settings("engine"))),
    )


def variables(choice: Choice) -> dict[str, str | None]:
    """Variables that differ from an untouched environment; None for one that must be absent.

    Secrets that the user gave to the trials are not handed on.
    """
    given, absent = environment.knob_variables(choice.applied)
    own = choice.study.spec.environ
    kept = {n: v for n, v in environment.mask(own).items() if v == own[n]}
    return {**kept, **given, **{name: None for name in absent if name not in own}}


def _torch(choice: Choice) -> dict[str, KnobValue | None]:
    """As the trial sets them: the word none stands for None."""
    changed = _live(choice.changes("torch"))
    return {path: None if value == "none" else value for path, value in changed.items()}


def _live(settings: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
    return {name: value for name, value in settings.items() if value != UNSET}


def _literal(values: Mapping[str, Any]) -> str:
    if not values:
        return "{}"
    lines = [f"    {name!r}: {value!r},\n" for name, value in values.items()]
    return "{\n" + "".join(lines) + "}"


def env(choice: Choice) -> str:
    """``NAME=value`` lines; what no variable can say follows as comments."""
    lines = [_title(choice)]
    for name, text in variables(choice).items():
        lines.append(
            f"# {name} must not be set" if text is None else f"{name}={_quoted(name, text)}"
        )
    return "\n".join(lines + _comments(choice)) + "\n"


def _quoted(name: str, text: str) -> str:
    if "\n" in text or "\r" in text:
        raise ExportError(
            f"{name} holds a line break, which an env file cannot; use --format shell"
        )
    return shlex.quote(text) if text else ""


def shell(choice: Choice) -> str:
    """A script that sets the environment and then becomes the command that it is given."""
    lines = ["#!/bin/sh", _title(choice), "# ./best.sh python train.py", "set -eu"]
    for name, text in variables(choice).items():
        lines.append(f"unset {name}" if text is None else f"export {name}={shlex.quote(text)}")
    arguments = json.dumps(choice.settings("argument"), allow_nan=False)
    lines += [f"export AUTOTUNE_ARGUMENTS={shlex.quote(arguments)}"]
    if argv := choice.study.spec.options.get("argv"):
        words = shlex.join(_filled(str(word), choice.configuration) for word in argv)
        lines += [f'[ "$#" -gt 0 ] || set -- {words}']
    return "\n".join([*lines, *_comments(choice), 'exec "$@"']) + "\n"


def _filled(word: str, configuration: Mapping[str, KnobValue]) -> str:
    """A word of the measured command with the values in place of the names."""
    for name, value in configuration.items():
        word = word.replace(f"{{{name}}}", str(value))
    return word.replace("{out}", "metrics.json")


def _title(choice: Choice) -> str:
    spec = choice.study.spec
    return _comment(f"autotune: {spec.model_name}, study {spec.name}, trial {choice.number}")


def _comments(choice: Choice) -> list[str]:
    rest = [k for k in choice.applied if "env" not in k.apply and not k.is_default]
    return [_comment(f"{next(iter(k.apply))} {k.name} = {k.value!r}") for k in rest]


def _comment(text: str) -> str:
    """One line, whatever the text holds."""
    return "# " + "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
