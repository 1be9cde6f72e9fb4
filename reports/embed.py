"""Data and scripts inside a page: strict JSON that no text in it can break out of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

_STATIC = Path(__file__).parent / "static"
# Inside <script> only "<" can end the element; the line separators end a string in old parsers.
_ESCAPES = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def data_block(data: Any) -> Markup:
    """JSON text for a ``<script type="application/json">``; raises ValueError on NaN."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate is legal in JSON as an escape, but not in a UTF-8 file.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return Markup(text)


def figure_data(figure: go.Figure) -> dict[str, Any]:
    """A chart as plain data, without the template (all its colours are explicit)."""
    data: dict[str, Any] = figure.to_plotly_json()
    data["layout"].pop("template", None)
    return data


def plotly_script() -> Markup:
    """The one copy of plotly.js."""
    script = get_plotlyjs()
    assert "</script" not in script.lower()
    return Markup(script)


def static(*names: str) -> Markup:
    """Our own style sheets or scripts, one after the other."""
    return Markup("\n".join((_STATIC / name).read_text(encoding="utf-8") for name in names))
