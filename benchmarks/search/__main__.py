"""``python -m benchmarks.search TABLE.csv.gz --strategy auto,tpe --seeds 50 --trials 200``."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.search import plot, score, synthetic, table
from benchmarks.search.play import STRATEGIES, Game, play
from benchmarks.search.problem import Problem

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main(argv: Sequence[str] | None = None) -> int:
    """Play, print, write; 2 when the arguments or a table are of no use."""
    options = _parser().parse_args(argv)
    for name in _THREADS:
        os.environ.setdefault(name, "1")  # one core per seed
    try:
        found = [(source, p) for source in _sources(options) for p in _load(source)]
    except table.BadTable as error:
        print(error, file=sys.stderr)
        return 2
    rows, tests, all_games = _run(options, found)
    if options.json:
        print(json.dumps({"scores": rows, "tests": tests}, indent=2))
    else:
        _print(rows)
        _print(tests)
    if options.out:
        score.write_csv(options.out / "scores.csv", rows)
        score.write_csv(options.out / "tests.csv", tests)
        plot.write(options.out / "gaps.html", [p for _, p in found], all_games, options.trials)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument(
        "tables", nargs="+", help=f"CSV files (see tables/README.md), or {synthetic.NAMES}"
    )
    parser.add_argument(
        "--strategy",
        default="auto",
        help=f"one or several of {', '.join(STRATEGIES)}, with commas; the first is compared "
        "with each of the others",
    )
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=200)
    objective = parser.add_mutually_exclusive_group()
    objective.add_argument("--minimize", metavar="COLUMN")
    objective.add_argument("--maximize", metavar="COLUMN")
    parser.add_argument("--within", type=float, help="share of best that counts as solved")
    parser.add_argument("--constraints", choices=("unknown", "known", "both"), default="unknown")
    parser.add_argument(
        "--until-solved",
        action="store_true",
        help="stop each game there: quicker, but later gaps and shares are those at the stop",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help="folder for scores.csv, tests.csv, gaps.html")
    return parser


_Source = tuple[str, str | None, str | None, bool, float | None]


def _sources(options: argparse.Namespace) -> list[_Source]:
    """What a worker process needs in order to load the same problems."""
    column = options.minimize or options.maximize
    direction = "min" if options.minimize else "max" if options.maximize else None
    modes = {"unknown": (False,), "known": (True,), "both": (False, True)}[options.constraints]
    return [
        (name, column, direction, known, options.within)
        for name in options.tables
        for known in (modes if name not in synthetic.NAMES else modes[:1])
    ]


@functools.cache
def _load(source: _Source) -> tuple[Problem, ...]:
    name, column, direction, known, within = source
    if name in synthetic.NAMES:
        return (synthetic.problem(name),)
    path = Path(name)
    return tuple(
        table.problems(path, column=column, direction=direction, known=known, within=within)
    )


def _game(
    source: _Source, problem: str, strategy: str, seed: int, trials: int, until_solved: bool
) -> Game:
    chosen = next(p for p in _load(source) if p.name == problem)
    return play(chosen, strategy, seed=seed, trials=trials, until_solved=until_solved)


def _run(
    options: argparse.Namespace, found: Sequence[tuple[_Source, Problem]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[list[Game]]]:
    rows, tests, everything = [], [], []
    names = options.strategy.split(",")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    with ProcessPoolExecutor(options.jobs) as pool:
        futures = {
            (problem.name, name): [
                pool.submit(
                    _game, source, problem.name, name, seed, options.trials, options.until_solved
                )
                for seed in seeds
            ]
            for source, problem in found
            for name in names
        }
        for _, problem in found:
            games = {n: [f.result() for f in futures[problem.name, n]] for n in names}
            rows += [score.summary(problem, games[n], options.trials) for n in names]
            tests += [
                score.compared(problem, games[names[0]], games[n], options.trials)
                for n in names[1:]
            ]
            everything += games.values()
    return rows, tests, everything


def _print(rows: Sequence[dict[str, Any]]) -> None:
    # A table of twenty columns would wrap: one line per row, each figure with its name.
    for row in rows:
        print("  ".join(f"{name}={value}" for name, value in row.items() if value is not None))


if __name__ == "__main__":
    sys.exit(main())
