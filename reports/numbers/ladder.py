"""The bars under the answer: upstream, common practice, best."""

from __future__ import annotations

from dataclasses import dataclass

from reports.numbers.answer import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One bar of the ladder from upstream to best; ``share`` is of the longest."""

    label: str
    kind: str  # upstream | common | best
    value: float
    share: float


def ladder(concluded: Answer) -> tuple[Rung, ...]:
    """The first objective of upstream, common practice and best; empty without a comparison."""
    line = concluded.metrics[0]
    rungs = [("Upstream", "upstream", line.upstream), ("Common practice", "common", line.common)]
    rungs.append(("Best", "best", line.best))
    known = [(label, kind, v.median) for label, kind, v in rungs if v is not None and v.median > 0]
    if len(known) < 2 or line.best is None:
        return ()
    most = max(value for _, _, value in known)
    return tuple(
        Rung(label=label, kind=kind, value=value, share=value / most)
        for label, kind, value in known
    )
