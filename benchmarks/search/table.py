"""Tables of measured configurations as problems: see tables/README.md for the columns."""

from __future__ import annotations

import csv
import gzip
import math
import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from autotune.sampler.protocol import key
from autotune.space import Choices, Domain, Floats, Integers, Knob, SearchSpace
from autotune.trial import Configuration, KnobValue, Status
from benchmarks.search.problem import Answer, Problem, listed_space

Row = Mapping[str, str]
_WIDE = 200  # different values that make a column a range, and the table a sample of it
_SMALLER_IS_BETTER = ("time", "latency", "seconds", "_ms", "_s", "loss", "energy", "memory")


class BadTable(ValueError):
    """A table is not of the shape that tables/README.md describes."""


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, gzipped or not; raises BadTable naming what is missing."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadTable(f"{path}: cannot be read as a CSV table: {error}") from None
    if not rows:
        raise BadTable(f"{path}: holds no row")
    for prefix, what in (("p_", "tunable parameter"), ("o_", "objective")):
        if not any(name.startswith(prefix) for name in rows[0]):
            raise BadTable(f"{path}: has no {prefix}* column ({what})")
    return rows


def problems(
    path: Path,
    *,
    column: str | None = None,
    direction: str | None = None,
    known: bool = False,
    within: float | None = None,
) -> list[Problem]:
    """One problem per workload of a table (the largest few, where there are many)."""
    rows = read(path)
    column = column or _objective_column(rows, path)
    if column not in rows[0]:
        raise BadTable(f"{path}: has no column {column}; objectives are {_objectives(rows)}")
    direction = direction or _direction(column)
    stem = path.name.removesuffix(".gz").removesuffix(".csv")
    return [
        _problem(f"{stem}{suffix}", part, column, direction, known=known, within=within)
        for suffix, part in _workloads(rows)
    ]


def _objectives(rows: Sequence[Row]) -> list[str]:
    return [c for c in rows[0] if c.startswith("o_") and "_std" not in c]


def _objective_column(rows: Sequence[Row], path: Path) -> str:
    found = _objectives(rows)
    if len(found) > 1:
        preferred = [c for c in found if "throughput" in c or c.startswith(("o_tok", "o_time"))]
        found = preferred[-1:] or found
    if not found:
        raise BadTable(f"{path}: name the objective with --minimize or --maximize COLUMN")
    return found[0]


def _direction(column: str) -> str:
    if any(word in column for word in ("throughput", "tok_s", "tps", "flops", "per_s")):
        return "max"
    return "min" if any(word in column for word in _SMALLER_IS_BETTER) else "max"


def _workloads(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    names = [c for c in rows[0] if c.startswith("w_")]
    if not names:
        return [("", list(rows))]
    sizes = Counter(tuple(row[c] for c in names) for row in rows)
    found = []
    for values, _ in sizes.most_common(3):
        part = [row for row in rows if tuple(row[c] for c in names) == values]
        found.append(("@" + ",".join(values), part))
    return found


def _problem(
    name: str,
    rows: Sequence[Row],
    column: str,
    direction: str,
    *,
    known: bool,
    within: float | None,
) -> Problem:
    names = [c for c in rows[0] if c.startswith("p_")]
    seen = {c: sorted({row[c] for row in rows}) for c in names}
    if max(map(len, seen.values())) > _WIDE:
        return _sampled(name, rows, column, direction, within)
    knobs = tuple(_knob(c, Choices(values=_typed(seen[c]))) for c in names)
    space = SearchSpace(name=name, knobs=knobs)
    typed = {c: dict(zip(seen[c], map(_value, seen[c]), strict=True)) for c in names}
    answers: dict[Any, Row] = {}
    for row in rows:
        configuration = {c.removeprefix("p_"): typed[c][row[c]] for c in names}
        # The first row of a configuration counts: later ones repeat it on other days.
        answers.setdefault(key(configuration), row)
    if known:
        space = listed_space(name, knobs, frozenset(answers))
    values = [v for row in answers.values() if (v := _measured(row, column)) is not None]
    if not values:
        raise BadTable(f"{name}: column {column} holds no number in a row with status ok")
    best = max(values) if direction == "max" else min(values)

    def truth(configuration: Configuration) -> float | None:
        row = answers.get(key(configuration))
        return None if row is None else _measured(row, column)

    def ask(configuration: Configuration, _: random.Random) -> Answer:
        row = answers.get(key(configuration))
        if row is None:
            return Answer(status=Status.UNSUPPORTED, value=None)
        value = _measured(row, column)
        status = Status.CRASHED if value is None else Status.COMPLETE
        return Answer(status=status, value=value, seconds=_seconds(row))

    return Problem(
        name=name + (" known" if known else ""),
        space=space,
        direction=direction,
        best=best,
        ask=ask,
        truth=truth,
        within=within or _within(values, best, direction),
        typical_seconds=statistics.fmean(map(_seconds, answers.values())),
    )


def _within(values: Sequence[float], best: float, direction: str) -> float:
    """5 % of best, or 1 % where so many rows lie within 5 % that any search would be there."""
    close = sum(1 for v in values if (v >= best * 0.95 if direction == "max" else v <= best * 1.05))
    return 0.01 if close > 0.1 * len(values) else 0.05


def _measured(row: Row, column: str) -> float | None:
    if row.get("status", "ok") != "ok":
        return None
    try:
        value = float(row[column])
    except (ValueError, TypeError):
        return None
    return value if math.isfinite(value) else None


def _seconds(row: Row) -> float:
    cost = 0.0
    for column in ("m_compile_ms", "m_benchmark_ms"):
        try:
            cost += max(0.0, float(row.get(column) or 0.0)) / 1000
        except ValueError:
            continue
    return cost


def _value(text: str) -> KnobValue:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _typed(texts: Sequence[str]) -> tuple[KnobValue, ...]:
    values = [_value(t) for t in texts]
    if all(isinstance(v, int | float) for v in values):
        return tuple(sorted(values, key=float))
    return tuple(values)


def _knob(column: str, domain: Domain) -> Knob:
    first = domain.values[0] if isinstance(domain, Choices) else domain.low
    name = column.removeprefix("p_")
    return Knob(name=name, domain=domain, default=first, apply={"argument": name}, summary=column)


def _sampled(
    name: str, rows: Sequence[Row], column: str, direction: str, within: float | None
) -> Problem:
    """A table that samples a continuous space: a forest fitted to it answers in its place."""
    names = [c for c in rows[0] if c.startswith("p_")]
    kept = [(row, v) for row in rows if (v := _measured(row, column)) is not None]
    columns = {c: np.array([float(row[c]) for row, _ in kept]) for c in names}
    knobs = tuple(_knob(c, _range(columns[c])) for c in names)
    logs = {
        c: isinstance(k.domain, Floats) and k.domain.log for c, k in zip(names, knobs, strict=True)
    }
    inputs = np.column_stack([np.log1p(columns[c]) if logs[c] else columns[c] for c in names])
    outputs = np.array([v for _, v in kept])
    forest = RandomForestRegressor(100, min_samples_leaf=2, random_state=0, n_jobs=1)
    forest.fit(inputs, outputs)
    fitted = forest.predict(inputs)
    best = float(fitted.max() if direction == "max" else fitted.min())
    noise = float(np.std(np.log(np.maximum(outputs, 1e-9)) - np.log(np.maximum(fitted, 1e-9))))

    def truth(configuration: Configuration) -> float:
        point = [float(configuration[k.name]) for k in knobs]
        shaped = [math.log1p(x) if logs[c] else x for c, x in zip(names, point, strict=True)]
        return float(_predict(forest, shaped))

    def ask(configuration: Configuration, rng: random.Random) -> Answer:
        value = truth(configuration) * math.exp(rng.gauss(0, min(noise, 0.02)))
        return Answer(status=Status.COMPLETE, value=value)

    return Problem(
        name=name + " surrogate",
        space=SearchSpace(name=name, knobs=knobs),
        direction=direction,
        best=best,
        ask=ask,
        truth=truth,
        within=within or 0.05,
    )


def _predict(forest: RandomForestRegressor, point: Sequence[float]) -> float:
    # One row at a time: walking the trees directly is ten times faster than predict().
    row = np.asarray([point], dtype=np.float32)
    return float(np.mean([tree.tree_.predict(row)[0, 0] for tree in forest.estimators_]))


def _range(values: np.ndarray) -> Domain:
    distinct = np.unique(values)
    if len(distinct) <= 4:
        return Choices(values=tuple(int(v) if v == int(v) else float(v) for v in distinct))
    low, high = float(distinct[0]), float(distinct[-1])
    if np.all(distinct == np.round(distinct)) and high - low < 4096:
        return Integers(low=int(low), high=int(high))
    return Floats(low=low, high=high, log=low > 0 and high / low > 1000)
