"""The claims of the playbook, as search_spaces/claims/claims.yaml states them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune import yaml_lines
from autotune.knob_yaml import mapping, only, place_of, requirement_of
from autotune.requirement import Requirement
from autotune.rooms import rooms_root
from autotune.space import SpaceError, nearest
from autotune.trial import KnobValue

FOLDER = "search_spaces/claims"
_KEYS = (
    "technique", "says", "claimed", "task", "model", "needs", "metric", "also", "micro", "workload",
    "settings", "cpu_settings", "arms", "judged", "ladder", "ranks", "missing",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What a claim promises: a smallest ratio, a largest relative difference, or only words."""

    text: str
    low: float | None = None
    equal_within: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim as a small study: arms over a base, the first of them the baseline."""

    id: str
    technique: str
    says: str
    claimed: Claimed
    metric: str
    arms: Mapping[str, Mapping[str, KnobValue]]
    judged: str  # the arm that decides
    task: str = "train"
    model: str | None = None  # instead of the one asked for
    needs: Requirement | None = None
    also: tuple[str, ...] = ()
    micro: str = ""  # operation and options of trials/micro, instead of a trial of the model
    workload: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    cpu_settings: tuple[str, ...] = ()  # instead of ``settings`` where there is no GPU
    ladder: bool = False  # each arm adds to the one before
    ranks: int = 1
    missing: str = ""  # why no trial shows it


def load() -> tuple[Claim, ...]:
    """Every claim; raises SpaceError with file and line."""
    path = rooms_root() / FOLDER / "claims.yaml"
    document = yaml_lines.load(path)
    return tuple(_claim(str(k), mapping(v, f"{path}: {k}"), str(path)) for k, v in document.items())


def choose(claims: tuple[Claim, ...], only_ids: tuple[str, ...]) -> tuple[Claim, ...]:
    """Those with the ids asked for (all of them for none); SpaceError names the nearest id."""
    known = [c.id for c in claims]
    for asked in only_ids:
        if asked not in known:
            raise SpaceError(f"unknown claim {asked}{nearest(asked, known)}")
    return tuple(c for c in claims if not only_ids or c.id in only_ids)


def _claim(name: str, body: Mapping[str, Any], file: str) -> Claim:
    only(body, _KEYS, file, name)
    arms = {str(k): dict(v or {}) for k, v in mapping(body.get("arms", {}), file).items()}
    if not arms and "missing" not in body:
        raise SpaceError(f"{file}: {name} needs arms, or says what is missing")
    judged = str(body.get("judged", list(arms)[-1] if arms else ""))
    if arms and judged not in arms:
        where = place_of(body, "judged", file)
        raise SpaceError(f"{where}: {name} has no arm {judged}{nearest(judged, list(arms))}")
    claimed = mapping(body.get("claimed"), f"{file}: claimed of {name}")
    only(claimed, ("text", "low", "equal_within"), file, f"claimed of {name}")
    return Claim(
        id=name,
        technique=str(body["technique"]),
        says=str(body["says"]),
        claimed=Claimed(**claimed),
        metric=str(body["metric"]),
        arms=arms,
        judged=judged,
        task=str(body.get("task", "train")),
        model=body.get("model"),
        needs=requirement_of(body.get("needs"), f"{place_of(body, 'needs', file)}: needs"),
        also=tuple(body.get("also", ())),
        micro=str(body.get("micro", "")),
        workload=tuple(body.get("workload", ())),
        settings=tuple(body.get("settings", ())),
        cpu_settings=tuple(body.get("cpu_settings", ())),
        ladder=bool(body.get("ladder", False)),
        ranks=int(body.get("ranks", 1)),
        missing=str(body.get("missing", "")),
    )
