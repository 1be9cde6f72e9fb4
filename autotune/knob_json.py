"""A knob as plain data, for the command line, the service and documents."""

from __future__ import annotations

from typing import Any

from autotune.space import Knob


def knob_json(knob: Knob) -> dict[str, Any]:
    """Everything the catalogue knows about a knob."""
    return {
        "name": knob.name,
        "domain": str(knob.domain),
        "default": knob.default,
        "when": knob.when.text if knob.when else "",
        "needs": list(knob.needs),
        "scope": list(knob.scope),
        "apply": dict(knob.apply),
        "restart": knob.restart,
        "affects": list(knob.affects),
        "risk": knob.risk,
        "prior": list(knob.prior),
        "workload": knob.workload,
        "summary": knob.summary,
        "source": knob.source,
    }
