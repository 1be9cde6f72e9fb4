"""YAML as people write it, strictly: every mapping remembers the line of each key.

Numbers follow YAML 1.2 (``1e-3`` is a number), and a bare on, off, yes or no stays text: choices
of that kind reach the trial as they were written. Duplicate keys, tabs and aliases are errors.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from autotune.space import SpaceError

_LARGEST_FILE_BYTES = 4 << 20
_LONGEST_NUMBER = 300


class Lines(dict[Any, Any]):
    """A mapping with the line of each of its keys (from 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[Any, int] = {}


class _Loader(yaml.SafeLoader):
    """Safe loading with YAML 1.2's scalars and without aliases, which can make a file explode."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            problem = "aliases (*name) are not allowed; write the value out"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, regexp)
        for tag, regexp in resolvers
        if not tag.endswith((":bool", ":float", ":timestamp", ":int"))
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


def _float(loader: _Loader, node: yaml.Node) -> float:
    text = str(loader.construct_scalar(node)).lower().replace(".inf", "inf").replace(".nan", "nan")  # type: ignore[arg-type]
    return float(text)


def _int(loader: _Loader, node: yaml.Node) -> int:
    text = str(loader.construct_scalar(node))  # type: ignore[arg-type]
    if len(text) > _LONGEST_NUMBER:
        raise _wrong(f"a number of {len(text)} digits is too long", node)
    return int(text)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Lines:
    found = Lines()
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | bool | None):
            raise _wrong("a key should be a single word", key_node)
        if key in found.lines:
            raise _wrong(f"key {key} stands twice (first in line {found.lines[key]})", key_node)
        found.lines[key] = key_node.start_mark.line + 1
        found[key] = loader.construct_object(value_node, deep=True)
    return found


def _wrong(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:float", _float)
_Loader.add_constructor("tag:yaml.org,2002:int", _int)
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load(path: Path) -> Lines:
    """The mapping in a file; SpaceError with file and line otherwise."""
    try:
        if path.exists() and not path.is_file():
            raise SpaceError(f"cannot read {path}: not a regular file")
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise SpaceError(f"{path}: larger than {_LARGEST_FILE_BYTES >> 20} MiB")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpaceError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpaceError(f"{path}: not UTF-8 text") from None
    return parse(text, str(path))


def parse(text: str, name: str) -> Lines:
    """The mapping in a text; SpaceError with name and line otherwise."""
    try:
        found = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else "?"
        problem = str(error.problem)
        if "'\\t'" in problem:
            problem = "tabs cannot indent YAML; use spaces"
        elif problem.startswith("could not determine a constructor"):
            problem = "tags (!!name) are not allowed"
        raise SpaceError(f"{name}:{line}: {problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpaceError(f"{name}:{line}: a character that YAML does not allow") from None
    except RecursionError:
        raise SpaceError(f"{name}: nested too deeply") from None
    if not isinstance(found, Lines):
        what = "is empty" if found is None else "should hold keys and values"
        raise SpaceError(f"{name}: {what}")
    return found


def line_of(mapping: Any, key: Any) -> int:
    """The line of a key, or 0 for a mapping that came from elsewhere."""
    return mapping.lines.get(key, 0) if isinstance(mapping, Lines) else 0
