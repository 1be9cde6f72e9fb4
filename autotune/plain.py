"""Values of any library as plain ones, and YAML that every reader understands alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import yaml

# What YAML 1.1 or 1.2 reads as something else than text; everything else that could be (numbers,
# dates, .inf, ~) does not start with a letter.
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_PLAIN_TEXT = re.compile(r"[A-Za-z_][A-Za-z0-9_./+-]*")


class NotPlain(TypeError):
    """A value that has no plain form; the message names its place and type."""


def plain(value: Any, where: str = "value") -> Any:
    """The value as dict, list, str, int, float, bool or None, equal to what it was."""
    match value:
        case Enum():
            return plain(value.value, where)
        case None | bool():
            return value
        case str():
            return str(value)  # sheds numpy.str_ and other subclasses
        case int():
            return int(value)
        case float():
            return float(value)
        case PurePath():
            return str(value)
        case Mapping():
            return {str(plain(k, where)): plain(v, f"{where}.{k}") for k, v in value.items()}
        case list() | tuple():
            return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
        case set() | frozenset():
            return sorted((plain(item, where) for item in value), key=repr)
    try:
        if callable(item := getattr(value, "item", None)):  # NumPy and tensors
            return plain(item(), where)
        if hasattr(value, "as_integer_ratio"):  # Decimal, Fraction
            return float(value)
    except (ValueError, RuntimeError):
        pass  # an array of several elements
    raise NotPlain(f"{where} is a {type(value).__name__}, which has no plain form")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: Any) -> bool:
        """An anchor is a puzzle for people and for some readers."""
        return True


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_safe = _PLAIN_TEXT.fullmatch(text) and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_safe else '"')


_Dumper.add_representer(str, _text_node)


def yaml_text(value: Mapping[str, Any]) -> str:
    """YAML with plain scalars only, that 1.1 and 1.2 parsers load as equal values.

    Raises NotPlain.
    """
    return yaml.dump(
        plain(value, "document"),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=float("inf"),
        default_flow_style=False,
    )
