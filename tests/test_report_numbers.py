"""The report's numbers, without a chart."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from autotune.study import Comparison, Contribution, Interval, Limit, Objective, Outcome, Study
from autotune.trial import Status, to_json
from reports import page
from reports.figures.roofline import roofline_figure
from reports.numbers import encoding, reproduce, units
from reports.numbers.answer import answer, baseline_trials
from reports.numbers.audit import audit
from reports.numbers.compare import compare
from reports.numbers.coordinates import coordinates
from reports.numbers.earned import waterfall
from reports.numbers.failures import failures, nearest_miss, totals, unknown_values
from reports.numbers.history import history
from reports.numbers.importance import importance
from reports.numbers.ladder import ladder
from reports.numbers.points import counts, front_line, points
from reports.numbers.prediction import predictions
from reports.numbers.roofline import roofline
from reports.numbers.study import BadStudy, StudyData, parse
from reports.numbers.table import table
from reports.numbers.thinning import thin
from reports.numbers.timing import timing
from tests import report_studies as studies


def data(study: Study) -> StudyData:
    return parse(to_json(study))


@pytest.fixture(scope="module")
def finished() -> StudyData:
    return data(studies.finished(120))


def replaced(study: Study, number: int, **metrics: float | None) -> Study:
    """The study with some metrics of one trial changed."""
    records = []
    for record in study.records:
        if record.spec.number == number and record.measurement is not None:
            changed = {**record.measurement.metrics, **metrics}
            record = dataclasses.replace(
                record, measurement=dataclasses.replace(record.measurement, metrics=changed)
            )
        records.append(record)
    return dataclasses.replace(study, records=tuple(records))


# --- reading ---------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [[], {}, {"spec": 3}, {"spec": {}}, {"spec": {"objectives": []}}])
def test_what_is_no_study_is_refused_in_one_line(wrong: Any) -> None:
    with pytest.raises(BadStudy) as caught:
        parse(wrong)
    assert "\n" not in str(caught.value)


def test_non_finite_metrics_are_unknown_and_keep_their_name() -> None:
    raw = to_json(studies.finished(40))
    first = raw["records"][1]["measurement"]["metrics"]
    first |= {"tokens_per_second": math.nan, "step_time_ms": math.inf, "flag": True}
    trial = parse(raw).by_number[1]
    assert trial.metric("tokens_per_second") is None
    assert set(trial.unknown) == {"tokens_per_second", "step_time_ms", "flag"}


def test_a_study_of_an_older_autotune_without_newer_fields_is_read() -> None:
    raw = to_json(studies.unfinished())
    for record in raw["records"]:
        for name in ("label", "applied", "front"):
            del record["spec"][name]
        del record["predicted"]
    assert len(parse(raw).trials) == 7


# --- the answer ------------------------------------------------------------------------------


def test_the_gain_over_common_practice_comes_first(finished: StudyData) -> None:
    found = answer(finished, points(finished))
    assert [g.baseline for g in found.gains] == ["common_practice", "default"]
    assert found.gains[0].verdict == "better"
    assert found.gains[0].ratio.low is not None
    assert not found.is_provisional


def test_the_upstream_baseline_is_known_by_either_name() -> None:
    study = studies.finished(40)
    assert study.outcome is not None
    renamed = [
        dataclasses.replace(c, baseline="upstream_default") if c.baseline == "default" else c
        for c in study.outcome.comparisons
    ]
    outcome = dataclasses.replace(study.outcome, comparisons=tuple(renamed))
    read = data(dataclasses.replace(study, outcome=outcome))
    assert answer(read, points(read)).gains[1].against == "upstream defaults"


def test_an_unfinished_study_gives_a_provisional_gain_without_interval() -> None:
    study = data(studies.unfinished(7, 20))
    found = answer(study, points(study))
    assert found.is_provisional
    assert found.gains
    assert all(g.ratio.low is None and g.verdict == "not verified yet" for g in found.gains)


def test_a_best_that_was_never_repeated_is_shown_with_its_single_measurement() -> None:
    study = studies.finished(40)
    assert study.outcome is not None
    bare = Outcome(best=study.outcome.best, verdict="best of single trials")
    read = data(dataclasses.replace(study, outcome=bare))
    found = answer(read, points(read))
    assert found.best == bare.best
    assert found.is_provisional
    assert found.metrics[0].best is not None


def test_an_outcome_without_best_is_not_talked_into_one() -> None:
    study = dataclasses.replace(studies.finished(40), outcome=Outcome(best=None))
    read = data(study)
    assert answer(read, points(read)).best is None


def test_a_latency_gain_above_one_means_faster() -> None:
    objective = Objective(metric="step_time_ms", direction="min")
    study = data(studies.finished(60, objectives=(objective,)))
    found = answer(study, points(study))
    line = found.metrics[0]
    assert line.best is not None
    assert line.common is not None
    assert line.best.median < line.common.median
    assert found.gains[0].ratio.median == pytest.approx(line.common.median / line.best.median)


@pytest.mark.parametrize(("low", "looks_better"), [(1.2, True), (0.98, False)])
def test_a_gain_that_was_not_called_better_stays_open(low: float, looks_better: bool) -> None:
    study = studies.finished(40)
    assert study.outcome is not None
    gain = Interval(median=1.3, low=low, high=1.5, n=3)
    unsure = Comparison(baseline="common_practice", gain=gain, verdict="not distinguishable")
    outcome = dataclasses.replace(study.outcome, comparisons=(unsure,))
    read = data(dataclasses.replace(study, outcome=outcome))
    lead = answer(read, points(read)).gains[0]
    assert lead.is_open
    assert lead.looks_better is looks_better
    text = page.render(read)
    assert ("No proven gain" in text) is not looks_better


def test_bounds_that_say_nothing_are_not_printed() -> None:
    study = studies.finished(40)
    assert study.outcome is not None
    gain = Interval(median=1.35, low=1e-12, high=2e12, n=3)
    unsure = Comparison(baseline="common_practice", gain=gain, verdict="not distinguishable")
    outcome = dataclasses.replace(study.outcome, comparisons=(unsure,))
    text = page.render(data(dataclasses.replace(study, outcome=outcome)))
    assert "the repeats differ too much" in text


def test_a_baseline_that_failed_at_full_depth_is_not_drawn_as_measured() -> None:
    study = studies.unfinished(7)
    common = study.records[1]
    deep = dataclasses.replace(
        common,
        spec=dataclasses.replace(
            common.spec,
            number=99,
            fidelity=dataclasses.replace(common.spec.fidelity, depths=()),
        ),
        status=Status.BAD_OUTPUT,
        measurement=None,
    )
    read = data(dataclasses.replace(study, records=(*study.records, deep)))
    drawn = page.figures(read, page.numbers(read))["trade"]
    assert "common practice" not in {trace.name for trace in drawn.data}
    assert "upstream" in {trace.name for trace in drawn.data}


def test_without_common_practice_the_diff_is_against_upstream() -> None:
    study = studies.unfinished(7)
    spec = dataclasses.replace(study.spec, presets=())
    read = data(dataclasses.replace(study, spec=spec))
    found = answer(read, points(read))
    assert [g.baseline for g in found.gains] == ["default"]
    assert all(change.common is None for change in found.changes)
    assert "Common practice" not in page.render(read)


def test_the_ladder_is_a_share_of_its_longest_rung(finished: StudyData) -> None:
    rungs = ladder(answer(finished, points(finished)))
    assert [r.kind for r in rungs] == ["upstream", "common", "best"]
    assert max(r.share for r in rungs) == 1.0
    assert rungs[0].share == pytest.approx(rungs[0].value / rungs[2].value)


def test_true_and_1_are_different_values_in_a_diff() -> None:
    study = studies.unfinished(7)
    winner = max(study.records, key=lambda r: r.metric("tokens_per_second") or 0)
    changed = dict(winner.spec.configuration) | {"loader.workers": False}
    record = dataclasses.replace(
        winner, spec=dataclasses.replace(winner.spec, configuration=changed)
    )
    records = tuple(record if r is winner else r for r in study.records)
    read = data(dataclasses.replace(study, records=records))
    assert answer(read, points(read)).changed["loader.workers"] is False


def test_the_nearest_miss_is_the_least_excess_over_any_limit() -> None:
    study = data(studies.hopeless())
    miss = nearest_miss(study)
    assert miss is not None
    assert miss.value == min(t.metrics["peak_memory_bytes"] for t in study.trials if t.is_complete)


# --- the front -------------------------------------------------------------------------------


def test_no_point_of_the_front_is_beaten_or_over_a_limit(finished: StudyData) -> None:
    found = points(finished)
    front = front_line(finished, found)
    assert front
    for point in front:
        assert point.metrics["peak_memory_bytes"] <= finished.limits[0].value
        for other in found:
            if other.kind in ("front", "feasible"):
                assert not (
                    other.metrics["tokens_per_second"] > point.metrics["tokens_per_second"]
                    and other.metrics["peak_memory_bytes"] < point.metrics["peak_memory_bytes"]
                )


def test_counts_add_up_to_the_configurations(finished: StudyData) -> None:
    found = points(finished)
    assert sum(counts(found).values()) == len(found)


def test_a_configuration_over_a_limit_is_never_on_the_front() -> None:
    limit = (Limit(metric="peak_memory_bytes", op="<=", value=70.0 * studies.GIB),)
    study = data(studies.finished(80, limits=limit))
    over = [p for p in points(study) if p.kind == "over_limit"]
    assert over
    assert all(p.metrics["peak_memory_bytes"] > limit[0].value for p in over)


def test_strict_leaves_trials_over_a_limit_out_and_counts_them() -> None:
    limit = (Limit(metric="peak_memory_bytes", op="<=", value=70.0 * studies.GIB),)
    study = data(studies.finished(80, limits=limit))
    strict, left_out = page.without_over_limit(study)
    assert left_out > 0
    assert len(strict.trials) + left_out == len(study.trials)
    assert counts(points(strict))["over_limit"] == 0


def test_a_configuration_that_fails_at_full_depth_has_failed() -> None:
    study = studies.unfinished(7)
    good = next(r for r in study.records if r.status is Status.COMPLETE and r.spec.number > 1)
    deep = dataclasses.replace(
        good,
        spec=dataclasses.replace(
            good.spec,
            number=99,
            stage="final",
            fidelity=dataclasses.replace(good.spec.fidelity, depths=()),
        ),
        status=Status.OUT_OF_MEMORY,
        measurement=None,
    )
    read = data(dataclasses.replace(study, records=(*study.records, deep)))
    point = next(p for p in points(read) if 99 in p.trials)
    assert (point.kind, point.status) == ("failed", "OUT_OF_MEMORY")


def test_repeats_are_one_point_at_their_median(finished: StudyData) -> None:
    point = next(p for p in points(finished) if len(p.trials) == 6)
    deep = [
        finished.by_number[n].metrics["tokens_per_second"]
        for n in point.trials
        if finished.by_number[n].is_full_depth and finished.by_number[n].is_complete
    ]
    assert min(deep) <= point.metrics["tokens_per_second"] <= max(deep)


def test_thinning_keeps_what_it_must_and_says_how_many() -> None:
    kept = thin(list(range(1000)), 50, keep=lambda i: i % 100 == 7, kept="the sevens")
    assert {i for i in range(1000) if i % 100 == 7} <= set(kept.items)
    assert kept.items == sorted(kept.items)
    assert len(kept.items) == 50
    assert "50 of 1,000" in kept.note
    assert "the sevens" in kept.note


def test_thinning_that_left_nothing_out_says_nothing() -> None:
    assert thin([1, 2], 50, keep=lambda _: False).note == ""


# --- what earned it --------------------------------------------------------------------------


def test_the_waterfall_begins_at_common_practice_and_ends_at_the_best(
    finished: StudyData,
) -> None:
    found = waterfall(finished)
    assert found is not None
    assert found.steps[0].label == "common practice"
    assert found.steps[-1].label == "best"
    for before, after in zip(found.steps[1:-1], found.steps[2:-1], strict=False):
        assert after.start == pytest.approx(before.end)
    assert found.steps[-2].end == pytest.approx(found.steps[-1].end)


def test_a_waterfall_of_a_latency_goes_down() -> None:
    def at(value: float) -> Interval:
        return Interval(median=value, low=value, high=value, n=3)

    outcome = Outcome(
        best=3,
        measured={"step_time_ms": at(50.0)},
        baselines={"common_practice": {"step_time_ms": at(100.0)}},
        comparisons=(Comparison(baseline="common_practice", gain=at(2.0), verdict="better"),),
        contributions=(
            Contribution(knob="a", value=1, baseline_value=0, gain=at(1.6), kept=True),
            Contribution(knob="b", value=1, baseline_value=0, gain=at(0.9), kept=False),
        ),
    )
    objective = Objective(metric="step_time_ms", direction="min")
    spec = studies.study_spec(objectives=(objective,))
    found = waterfall(data(Study(spec=spec, records=(), outcome=outcome)))
    assert found is not None
    assert [round(s.end, 3) for s in found.steps] == [100.0, 62.5, 50.0, 50.0]
    assert [d.knob for d in found.dropped] == ["b"]


def test_changes_that_the_ablation_never_came_to_earn_nothing_known() -> None:
    study = studies.finished(40)
    assert study.outcome is not None
    blank = Interval(median=1.0, low=1.0, high=1.0, n=0)
    rows = tuple(dataclasses.replace(c, gain=blank) for c in study.outcome.contributions)
    outcome = dataclasses.replace(study.outcome, contributions=rows)
    read = data(dataclasses.replace(study, outcome=outcome))
    assert waterfall(read) is None
    assert all(change.earns is None for change in answer(read, points(read)).changes)


# --- importance, coordinates, history --------------------------------------------------------


def test_the_knob_that_matters_most_is_found_with_an_interval_around_it() -> None:
    study = data(studies.finished(150, seed=4))
    found = importance(study)
    assert found.shares[0].knob == "precision.compute_dtype"
    assert found.explained > 0.5
    assert all(0 <= s.low <= s.median <= s.high <= 1 for s in found.shares)
    inert = {s.knob: s.median for s in found.shares}["loader.workers"]
    assert inert < 0.02


def test_too_few_trials_give_no_importance_but_a_reason() -> None:
    found = importance(data(studies.unfinished(7)))
    assert found.shares == ()
    assert "7" in found.note


def test_equal_results_give_no_importance_but_a_reason() -> None:
    study = studies.unfinished(40, 40)
    for record in study.records:
        study = replaced(study, record.spec.number, tokens_per_second=100.0)
    assert "same result" in importance(data(study)).note


def test_inactive_knobs_have_no_place_on_their_axis(finished: StudyData) -> None:
    found = coordinates(finished, points(finished), importance(finished))
    assert found is not None
    names = [axis.knob for axis in found.axes]
    assert 3 <= len(names) <= 9
    assert names[-1] == "tokens_per_second"
    for line in found.lines.items:
        assert all(p is None or -1e-9 <= p <= 1 + 1e-9 for p in line.places)


def test_mixed_types_of_values_make_an_axis_of_choices(finished: StudyData) -> None:
    axis = encoding.axis("allocator.expandable_segments", finished.trials)
    assert axis.kind == "choice"
    assert axis.place(True) != axis.place("unset")


def test_the_best_so_far_only_improves_and_repeats_set_no_record(finished: StudyData) -> None:
    found = history(finished)
    values = [value for _, value in found.best]
    assert values == sorted(values)
    assert not any(m.is_record for m in found.moments.items if m.stage == "final")
    assert [name for name, _, _ in found.stages][:2] == ["default", "preset"]
    assert sum(count for _, count, _ in found.stages) == len(finished.trials)


# --- time, prediction, roofline ----------------------------------------------------------------


def test_phases_and_failures_add_up_to_the_time_inside_trials(finished: StudyData) -> None:
    found = timing(finished)
    assert found is not None
    parts = sum(sum(row.seconds.values()) for row in found.rows)
    assert parts == pytest.approx(found.trial_seconds, rel=1e-6)
    assert found.failed_seconds > 0
    assert found.search_seconds is not None


def test_a_night_between_two_sessions_is_not_called_searching() -> None:
    study = studies.unfinished(6)
    late = [
        dataclasses.replace(r, started_at=r.started_at.replace("2026-12-01", "2026-12-02"))
        if r.spec.number > 2
        else r
        for r in study.records
    ]
    found = timing(data(dataclasses.replace(study, records=tuple(late))))
    assert found is not None
    assert found.elapsed_seconds is not None
    assert found.elapsed_seconds < 200


def test_compilation_inside_the_warm_up_is_shown_as_compilation() -> None:
    raw = to_json(studies.unfinished(7))
    for record in raw["records"]:
        if record["measurement"] is not None:
            record["measurement"]["phases"] = {"warm_up": 5.0, "measure": 1.0}
            record["measurement"]["metrics"]["compile_seconds"] = 4.0
    found = timing(parse(raw))
    assert found is not None
    assert all(row.seconds["compile"] == 4 * row.seconds["warmup"] for row in found.rows)


def test_two_thousand_knobs_do_not_fill_the_memory() -> None:
    study = data(studies.unfinished(60, 60))
    wide = [
        dataclasses.replace(
            t,
            configuration={
                **t.configuration,
                **{f"x.{i}": (t.number * i) % 7 for i in range(2000)},
            },
        )
        for t in study.trials
    ]
    found = importance(dataclasses.replace(study, trials=tuple(wide)))
    assert len(found.shares) > 1700
    assert len(found.shown) <= 12


def test_predictions_are_judged_by_their_relative_error(finished: StudyData) -> None:
    found = {p.metric: p for p in predictions(finished)}
    assert set(found) == {"tokens_per_second", "peak_memory_bytes"}
    assert 0 < found["peak_memory_bytes"].median_error < found["tokens_per_second"].median_error


def test_the_roofline_stands_on_measured_ceilings(finished: StudyData) -> None:
    found = roofline(finished)
    assert found is not None
    assert not found.is_relative
    assert {c.name for c in found.ceilings if c.is_bandwidth} == {"copy_bytes"}
    assert found.bottlenecks
    assert sum(found.bottlenecks[-1].shares.values()) == pytest.approx(1.0)


def test_without_ceilings_the_roofline_is_relative() -> None:
    print_ = {"host": "laptop"}
    found = roofline(data(studies.finished(60, fingerprint=print_)))
    assert found is not None
    assert found.is_relative
    assert found.has_bytes


def test_trials_that_count_no_bytes_stand_under_the_ceiling_of_their_format() -> None:
    raw = to_json(studies.finished(60, fingerprint={}))
    for record in raw["records"]:
        if record["measurement"] is not None:
            del record["measurement"]["metrics"]["memory_bandwidth_utilization"]
            record["measurement"]["telemetry"] = {
                "matmul_ceiling_flops": 796e12,
                "matmul_ceiling_dtype": "bf16",
                "model_flops_per_second": 400e12,
            }
    found = roofline(parse(raw))
    assert found is not None
    assert not found.has_bytes
    assert [(c.name, c.rate) for c in found.ceilings] == [("bf16 matmul", 796e12)]
    assert {s.rate for s in found.spots.items} == {400e12}
    assert roofline_figure(found) is not None


# --- failures and gaps -----------------------------------------------------------------------


def test_the_classes_add_up_to_the_trials_run(finished: StudyData) -> None:
    assert sum(count for _, count in totals(finished)) == len(finished.trials)
    listed = sum(f.count for f in failures(finished))
    fine = sum(t.status in ("COMPLETE", "STOPPED_EARLY") for t in finished.trials)
    assert listed + fine == len(finished.trials)


def test_failures_that_differ_in_numbers_only_are_one_reason(finished: StudyData) -> None:
    memory = next(f for f in failures(finished) if f.status == "OUT_OF_MEMORY")
    assert len(memory.reasons) == 1
    assert memory.reasons[0].count == memory.count
    assert memory.reasons[0].detail
    assert memory.reasons[0].folder.startswith("runs/")


def test_values_that_could_not_be_measured_are_listed_with_their_trials() -> None:
    found = dict(unknown_values(parse(studies.with_bad_numbers())))
    assert len(found["tokens_per_second"]) == 4
    assert len(found["peak_memory_bytes"]) == 1


# --- table, audit, comparison, reproduction ------------------------------------------------


def test_columns_of_the_table_are_of_equal_length(finished: StudyData) -> None:
    found_points = points(finished)
    rows = table(finished, finished.trials, found_points, answer(finished, found_points))
    count = len(finished.trials)
    columns = [rows["number"], rows["seconds"], *rows["metrics"].values()]
    columns += [c["index"] for c in (rows["stage"], rows["status"], *rows["knobs"].values())]
    assert {len(c) for c in columns} == {count}
    knobs, row = rows["knobs"]["loader.workers"], 17
    assert (
        knobs["values"][knobs["index"][row]] == finished.trials[row].configuration["loader.workers"]
    )


def test_an_audited_knob_that_is_not_read_back_is_not_proven() -> None:
    rows = {row.knob: row for row in audit(data(studies.audited()))}
    assert "baseline" not in rows
    assert not rows["loader.workers"].is_proven
    assert rows["optim.implementation"].is_proven
    effect = rows["optim.implementation"].effect
    assert effect is not None
    assert effect.median == pytest.approx(1.065, abs=0.02)


def test_a_comparison_of_a_study_with_itself_is_not_distinguishable() -> None:
    study = data(studies.finished(60))
    found = compare(study, study)
    assert found.lead is not None
    assert found.lead.verdict == "not distinguishable"
    assert found.knobs == found.questions == found.machines == ()


def test_a_comparison_names_what_differs() -> None:
    other = studies.finished(60, seed=9, task="serve", fingerprint={"host": "gpu-2"})
    found = compare(data(studies.finished(60)), data(other))
    assert "Task" in {d.name for d in found.questions}
    assert "host" in {d.name for d in found.machines}
    assert found.knobs


def test_secrets_in_the_environment_are_hidden() -> None:
    study = data(studies.hostile())
    shown = dict(reproduce.facts(study))
    assert shown["Environment: HF_TOKEN"] == "(hidden)"
    assert shown["Environment: NOTE"] != "(hidden)"


def test_best_yaml_is_plain_and_reads_back_as_it_was(finished: StudyData) -> None:
    import yaml

    found = answer(finished, points(finished))
    read = yaml.safe_load(reproduce.best_yaml(finished, found))
    assert read["configuration"] == dict(found.configuration)
    assert read["gain"]["median"] == found.gains[0].ratio.median
    assert read["seed"] == 137


def test_the_baselines_are_found_by_label_or_by_preset(finished: StudyData) -> None:
    found = baseline_trials(finished)
    assert found["default"].configuration["precision.compute_dtype"] == "fp32"
    assert found["common_practice"].configuration["precision.compute_dtype"] == "bf16"


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("tokens_per_second", 18219.4, "18,219 tokens/s"),
        ("peak_memory_bytes", 76.8 * 2**30, "76.8 GiB"),
        ("request_latency_ms_p99", 41.0, "41 ms"),
        ("model_flops_utilization", 0.4567, "45.67 %"),
        ("dollars_per_million_tokens", 0.0712, "$0.0712/M tokens"),
        ("some_unknown_metric", 3.0, "3"),
        ("tokens_per_second", None, "–"),
        ("validation_loss", 0.0, "0 nats"),
        ("validation_loss", 1e-7, "1.000e-07 nats"),
    ],
)
def test_quantities_are_written_in_their_unit(metric: str, value: float | None, text: str) -> None:
    assert units.quantity(metric, value) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.16, "+16.0 %"), (0.925, "−7.5 %"), (0.9999, "0.0 %"), (17.0, "+1600.0 %")],
)
def test_gains_are_written_with_their_sign(ratio: float, text: str) -> None:
    assert units.percent(ratio) == text
