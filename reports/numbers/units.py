"""How metrics and values are written for a person: label, unit, scale, digits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune import metric as catalogue
from reports.numbers.study import KnobValue

_NAMES = {
    "tokens_per_second": ("Throughput", "tokens/s"),
    "tokens_per_second_per_gpu": ("Throughput per GPU", "tokens/s"),
    "useful_tokens_per_second": ("Useful throughput", "tokens/s"),
    "output_tokens_per_second": ("Output throughput", "tokens/s"),
    "requests_per_second": ("Request rate", "req/s"),
    "goodput_requests_per_second": ("Goodput", "req/s"),
    "energy_joules_per_token": ("Energy", "J/token"),
    "average_power_watts": ("Average power", "W"),
    "dollars_per_million_tokens": ("Cost", "$/M tokens"),
    "validation_loss": ("Validation loss", "nats"),
    "loss_at_end": ("Loss at end", "nats"),
    "output_divergence": ("Output divergence", "nats"),
    "perplexity": ("Perplexity", ""),
    "preemptions": ("Preemptions", ""),
}
_SUFFIXES = (
    ("_ms", "ms", 1.0),
    ("_bytes", "GiB", 2.0**-30),
    ("_seconds", "s", 1.0),
    ("_utilization", "%", 100.0),
    ("_fraction", "%", 100.0),
    ("_occupancy", "%", 100.0),
)
_ACRONYMS = {"Kv ": "KV ", "flops": "FLOPs", " p50": " p50", " p99": " p99"}


@dataclass(frozen=True, slots=True)
class Unit:
    """A metric's words: ``label`` for headings, ``unit`` after numbers, ``scale`` to reach it."""

    label: str
    unit: str
    scale: float
    better: str  # max | min | "" when unknown

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


def unit(name: str) -> Unit:
    """The words for a metric, catalogued or not."""
    known = catalogue.find(name)
    better = known.direction if known else ""
    base, percentile = name, ""
    head, _, tail = name.rpartition("_")
    if tail in catalogue.PERCENTILES:
        base, percentile = head, f" {tail}"
    if base in _NAMES:
        label, symbol = _NAMES[base]
        return Unit(label + percentile, symbol, 1.0, better)
    for suffix, symbol, scale in _SUFFIXES:
        if base.endswith(suffix):
            stem = base if symbol == "%" else base.removesuffix(suffix)
            return Unit(_words(stem) + percentile, symbol, scale, better)
    return Unit(_words(base) + percentile, "", 1.0, better)


def number(value: float | None, digits: int = 4) -> str:
    """A number with about ``digits`` significant figures and thousands separators."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size >= 15 or size < -4:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - size)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def quantity(name: str, value: float | None, digits: int = 4) -> str:
    """A metric's value in its unit, e.g. ``76.8 GiB``."""
    words = unit(name)
    if value is None:
        return "–"
    text = number(value * words.scale, digits)
    if words.unit.startswith("$"):
        return f"${text} {words.unit[1:]}".replace(" /", "/")
    return f"{text} {words.unit}".strip() if words.unit != "%" else f"{text} %"


def knob_value(value: KnobValue | None) -> str:
    """A knob's value the way YAML would show it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def percent(ratio: float) -> str:
    """What a ratio earns, e.g. ``+16.0 %``; nothing, when that is what it rounds to."""
    tenths = round(1000 * (ratio - 1))
    return f"{tenths / 10:+.1f} %".replace("-", "−") if tenths else "0.0 %"


def duration(seconds: float) -> str:
    """``42 s``, ``6 min 5 s`` or ``2 h 3 min``."""
    if seconds < 60:
        return f"{number(seconds, 3)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def _words(name: str) -> str:
    text = name.replace("_", " ").strip().capitalize()
    for plain, proper in _ACRONYMS.items():
        text = text.replace(plain, proper)
    return text


def sign(op: str) -> str:
    """A limit's comparison as a person writes it."""
    return {"<=": "≤", ">=": "≥"}.get(op, op)
