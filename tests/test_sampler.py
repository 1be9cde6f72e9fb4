"""Strategies: what they may propose, what they learn, and that they continue where they stopped."""

from __future__ import annotations

import statistics
import subprocess
import sys

import pytest

from autotune.sampler.factory import make
from autotune.sampler.protocol import Proposal, Strategy, key
from autotune.space import Choices, Floats, Integers, SearchSpace
from autotune.study import Limit
from autotune.trial import Configuration, Status, TrialRecord
from tests.simulated import SPEED, knob, random_space, record, search, space

STRATEGIES = ("auto", "tpe", "random", "nsga2")


def _make(name: str, where: SearchSpace, seed: int = 0, **more: object) -> Strategy:
    return make(name, where, objectives=[SPEED], seed=seed, **more)  # type: ignore[arg-type]


def _value(configuration: Configuration) -> float | None:
    """Some value that hangs on every knob; one configuration in four crashes."""
    mixed = sum(hash(pair) for pair in key(configuration)) % 1000
    return None if mixed % 4 == 0 else 100.0 + mixed


def _grid() -> SearchSpace:
    """A kernel as tuners know it: sizes, whose product may be too large, and switches."""
    sizes = [knob(n, Choices(values=(1, 2, 4, 8, 16, 32)), 1) for n in ("bx", "by", "tx", "ty")]
    return space([*sizes, *(knob(n, Choices(values=(0, 1)), 0) for n in ("pad", "cache"))])


def _kernel(configuration: Configuration) -> float | None:
    c = {name: float(value) for name, value in configuration.items()}
    threads, work = c["bx"] * c["by"], c["tx"] * c["ty"]
    if threads > 256 or threads * work > 2048:
        return None
    penalty = abs(threads / 128 - 1) + abs(work / 8 - 1) + abs(c["bx"] / 32 - 1)
    return 1000 / (1 + penalty + 0.3 * (1 - c["pad"]) + 0.2 * c["cache"])


def _wide() -> SearchSpace:
    switches = [knob(f"s{i}", Choices(values=(False, True)), False) for i in range(60)]
    words = [knob(f"w{i}", Choices(values=("a", "b", "c")), "a") for i in range(40)]
    steps = [knob(f"n{i}", Integers(low=1, high=64), 8) for i in range(20)]
    return space([*switches, *words, *steps], "n18 + n19 <= 100")


def _few_matter(configuration: Configuration) -> float | None:
    if configuration["w39"] == "c" or (configuration["s58"] and configuration["s59"]):
        return None
    good = sum(bool(configuration[f"s{i}"]) for i in range(4))
    good += sum(configuration[f"w{i}"] == "b" for i in range(3))
    return 1000 * 1.12**good


def _best(records: list[TrialRecord]) -> float:
    return max(r.metric(SPEED.metric) or 0.0 for r in records)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("seed", range(3))
def test_proposals_are_legal_complete_and_never_repeated(name: str, seed: int) -> None:
    where = random_space(seed)
    strategy = _make(name, where, seed)
    records = search(strategy, _value, 25)
    identities = {key(r.spec.configuration) for r in records}
    assert len(identities) == len(records) == 25
    for found in records:
        where.check(found.spec.configuration)
        assert where.complete(found.spec.configuration) == found.spec.configuration


def test_wide_proposals_are_legal_complete_and_never_repeated() -> None:
    where = _wide()
    records = search(_make("auto", where), _few_matter, 60)
    assert len({key(r.spec.configuration) for r in records}) == 60
    for found in records:
        where.check(found.spec.configuration)
        assert where.complete(found.spec.configuration) == found.spec.configuration


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_another_driver_saw_fail_is_not_proposed(name: str) -> None:
    where = space([knob("a", Integers(low=0, high=3), 0), knob("b", Integers(low=0, high=3), 0)])
    failed = [{"a": a, "b": b} for a in range(4) for b in range(3)]
    strategy = _make(name, where)
    for number, configuration in enumerate(failed):
        proposal = Proposal(configuration=configuration, stage="search")
        strategy.tell(record(number, proposal, None))
    records = search(strategy, lambda c: float(c["a"]), 16)
    assert sorted(r.spec.configuration["a"] for r in records) == [0, 1, 2, 3]
    assert {r.spec.configuration["b"] for r in records} == {3}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_small_space_is_searched_to_its_end(name: str) -> None:
    where = space(
        [knob("a", Integers(low=0, high=2), 0), knob("b", Choices(values=("x", "y")), "x")]
    )
    strategy = _make(name, where)
    assert len(search(strategy, _value, 20)) == 6
    assert strategy.ask() is None


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_abandoned_trial_may_be_proposed_again(name: str) -> None:
    strategy = _make(name, space([knob("a", Integers(low=0, high=1), 0)]))
    first = strategy.ask()
    assert first is not None
    strategy.tell(record(0, first, None, Status.ABANDONED))
    assert len(search(strategy, lambda _: 1.0, 5)) == 2


@pytest.mark.parametrize("where", [_grid(), _wide()], ids=["grid", "wide"])
def test_the_same_seed_proposes_the_same(where: SearchSpace) -> None:
    truth = _kernel if "bx" in {k.name for k in where.knobs} else _few_matter
    first, again, other = (search(_make("auto", where, seed), truth, 25) for seed in (1, 1, 2))
    assert [r.spec.configuration for r in first] == [r.spec.configuration for r in again]
    assert [r.spec.configuration for r in first] != [r.spec.configuration for r in other]


@pytest.mark.parametrize("where", [_grid(), _wide()], ids=["grid", "wide"])
def test_a_resumed_search_continues_with_other_proposals(where: SearchSpace) -> None:
    truth = _kernel if "bx" in {k.name for k in where.knobs} else _few_matter
    before = search(_make("auto", where), truth, 20)
    resumed = _make("auto", where)
    resumed.replay(before)
    after = search(resumed, truth, 20, first=20)
    known = {key(r.spec.configuration) for r in before}
    assert not known & {key(r.spec.configuration) for r in after}
    # It goes on from what was known: fresh starts do not do that well within twenty trials.
    middling = statistics.median(r.metric(SPEED.metric) or 0.0 for r in before)
    assert statistics.median(r.metric(SPEED.metric) or 0.0 for r in after) > middling


@pytest.mark.parametrize("where", [_grid(), _wide()], ids=["grid", "wide"])
def test_many_may_ask_before_anything_comes_back(where: SearchSpace) -> None:
    truth = _kernel if "bx" in {k.name for k in where.knobs} else _few_matter
    strategy = _make("auto", where)
    search(strategy, truth, 15)
    asked = [p for p in (strategy.ask() for _ in range(8)) if p is not None]
    assert len({key(p.configuration) for p in asked}) == 8
    for number, proposal in enumerate(reversed(asked)):
        strategy.tell(record(100 + number, proposal, truth(proposal.configuration)))
    assert strategy.ask() is not None


def test_default_and_presets_come_first_and_once() -> None:
    preset = {"name": "common_practice", "configuration": {"bx": 8, "by": 8}}
    strategy = _make("auto", _grid(), presets=[preset])
    records = search(strategy, _kernel, 12)
    assert [r.spec.stage for r in records[:3]] == ["default", "preset", "search"]
    assert records[1].spec.configuration["bx"] == 8


def test_auto_finds_a_better_kernel_than_random() -> None:
    def found(name: str, seed: int) -> float:
        return _best(search(_make(name, _grid(), seed, start_at_default=False), _kernel, 45))

    seeds = range(3)
    assert min(found("auto", s) for s in seeds) > max(found("random", s) for s in seeds)


def test_auto_finds_the_few_of_many_knobs_and_keeps_out_of_the_crash_region() -> None:
    auto = [search(_make("auto", _wide(), seed), _few_matter, 60) for seed in range(2)]
    chance = [search(_make("random", _wide(), seed), _few_matter, 60) for seed in range(2)]
    assert statistics.mean(map(_best, auto)) > 1.05 * statistics.mean(map(_best, chance))

    def late_crashes(games: list[list[TrialRecord]]) -> int:
        return sum(r.status is Status.CRASHED for game in games for r in game[30:])

    assert 3 * late_crashes(auto) <= late_crashes(chance)


def test_a_limit_counts_as_a_failure_to_be_learnt() -> None:
    limit = Limit(metric=SPEED.metric, op="<=", value=500.0)
    strategy = _make("auto", _grid(), limits=[limit], start_at_default=False)
    records = search(strategy, _kernel, 50)
    speeds = [r.metric(SPEED.metric) or 0.0 for r in records]
    # One that saw only the speed would spend nearly all of the second half over the limit.
    assert 0 < sum(speed > 500.0 for speed in speeds[25:]) < 13
    assert max(speed for speed in speeds if speed <= 500.0) > 400.0


def test_continuous_knobs_are_refined() -> None:
    where = space([knob(n, Floats(low=0.0, high=1.0), 0.5) for n in ("x", "y", "z")])

    def bowl(c: Configuration) -> float:
        return 1000 - 1000 * sum(
            (float(c[n]) - t) ** 2 for n, t in (("x", 0.2), ("y", 0.9), ("z", 0.4))
        )

    assert _best(search(_make("auto", where), bowl, 40)) > 970


def test_help_imports_no_model_library() -> None:
    program = (
        "import sys; sys.argv = ['autotune', '--help']\n"
        "from autotune.cli import cli\n"
        "try:\n    cli()\n"
        "finally:\n    assert not {'sklearn', 'scipy', 'optuna'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
