"""Where the rooms (trials, reports, search_spaces) lie, and the environment of a child."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_PACKAGED = Path(__file__).parent / "_rooms"  # in a wheel
_CHECKOUT = Path(__file__).parents[1]  # in the repository


def rooms_root() -> Path:
    """Parent of trials/, reports/ and search_spaces/."""
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


def child_environ(extra: Mapping[str, str]) -> dict[str, str]:
    """Ours, the trial's own variables, and a path that no file of the user's can shadow.

    autotune itself must be importable too: trials share ``autotune.trial``. A PYTHONPATH that the
    user had set comes after ours, so that libraries kept there stay visible.
    """
    ours = dict.fromkeys([str(rooms_root()), str(_CHECKOUT)])
    theirs = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join([*ours, *([theirs] if theirs else [])])
    return {**os.environ, **extra, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
