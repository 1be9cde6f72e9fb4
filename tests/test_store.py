"""What a store keeps and hands out, the same on every kind of database."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator

import numpy as np
import pytest

from autotune.store import Store, StoreError
from autotune.trial import Measurement, Status, to_json
from tests.studies import a_record, a_spec, a_study, an_outcome


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    opened = Store(store_url)
    yield opened
    opened.close()


def test_a_study_comes_back_as_it_was_stored(store: Store) -> None:
    study = a_study()
    store.create_study(study.spec)
    for record in study.records:
        assert store.add(record)
    store.finish("s1", study.outcome, "finished")
    assert store.load("s1") == study


def test_samples_telemetry_and_notices_are_kept(store: Store) -> None:
    store.create_study(a_spec())
    store.add(a_record(0))
    kept = store.load("s1").records[0].measurement
    assert kept == a_record(0).measurement
    assert kept is not None
    assert kept.samples["step_time_ms"] == (1.0, 1.5)
    assert kept.telemetry == {"sm_clock_mhz": [1980, 1975]}


def test_records_come_in_the_order_of_their_numbers(store: Store) -> None:
    store.create_study(a_spec())
    for number in (2, 0, 1):
        store.add(a_record(number))
    assert [r.spec.number for r in store.load("s1").records] == [0, 1, 2]


def test_another_connection_sees_what_was_stored(store: Store, store_url: str) -> None:
    store.create_study(a_spec())
    store.add(a_record(0))
    other = Store(store_url)
    assert other.load("s1") == store.load("s1")
    other.close()


@pytest.mark.parametrize("text", ["ü 漢字 🙂", "\x00 nul", "\ud800 half", "'; drop table x; --"])
def test_any_text_survives(store: Store, text: str) -> None:
    store.create_study(a_spec())
    measurement = Measurement(metrics={"tokens_per_second": 1.0}, notices=(text,))
    store.add(dataclasses.replace(a_record(0), measurement=measurement))
    kept = store.load("s1").records[0].measurement
    assert kept is not None
    assert kept.notices == (text,)


def test_numbers_of_numpy_are_stored_as_plain_ones(store: Store) -> None:
    store.create_study(a_spec())
    metrics = {"a": np.float32(0.5), "b": np.int64(3), "c": np.float64(2.5)}
    measurement = Measurement(metrics=metrics)  # type: ignore[arg-type]
    store.add(dataclasses.replace(a_record(0), measurement=measurement))
    kept = store.load("s1").records[0].measurement
    assert kept is not None
    assert {k: (v, type(v)) for k, v in kept.metrics.items()} == {
        "a": (0.5, float),
        "b": (3, int),
        "c": (2.5, float),
    }


def test_a_value_that_is_not_plain_is_refused_by_its_type(store: Store) -> None:
    store.create_study(a_spec())
    record = dataclasses.replace(a_record(0), predicted={"a": object()})  # type: ignore[dict-item]
    with pytest.raises(StoreError, match="no plain value"):
        store.add(record)
    assert store.load("s1").records == ()


def test_infinity_and_nan_are_stored_as_unknown(store: Store) -> None:
    store.create_study(a_spec())
    measurement = Measurement(metrics={"a": math.inf, "b": math.nan, "c": 1.0})
    store.add(dataclasses.replace(a_record(0), measurement=measurement))
    loaded = store.load("s1")
    kept = loaded.records[0].measurement
    assert kept is not None
    assert kept.metrics == {"a": None, "b": None, "c": 1.0}
    json.dumps(to_json(loaded), allow_nan=False)


def test_a_number_has_one_record_and_the_first_counts(store: Store) -> None:
    store.create_study(a_spec())
    assert store.add(a_record(0, rate=1.0))
    assert not store.add(a_record(0, rate=2.0))
    assert [r.metric("tokens_per_second") for r in store.load("s1").records] == [1.0]


def test_only_what_was_not_seen_is_read_again(store: Store) -> None:
    store.create_study(a_spec())
    for number in range(3):
        store.add(a_record(number))
    assert [r.spec.number for r in store.records_since("s1", {1})] == [0, 2]
    assert store.records_since("s1", {0, 1, 2}) == ()


def test_studies_are_listed_with_their_counts(store: Store) -> None:
    store.create_study(a_spec("first"))
    store.create_study(a_spec("second"))
    store.add(a_record(0, study="second"))
    store.set_state("second", "interrupted")
    rows = [(r.name, r.state, r.trials) for r in store.studies()]
    assert rows == [("first", "running", 0), ("second", "interrupted", 1)]
    assert store.state("second") == "interrupted"


def test_studies_do_not_see_each_others_trials(store: Store) -> None:
    for name in ("first", "second"):
        store.create_study(a_spec(name))
        assert store.claim(name, "me") == 0
        store.add(a_record(0, study=name))
    assert [len(store.load(name).records) for name in ("first", "second")] == [1, 1]


def test_the_same_study_is_joined(store: Store) -> None:
    assert store.create_study(a_spec())
    later = dataclasses.replace(a_spec(), created_at="later", fingerprint={"host": "b"}, workers=9)
    assert not store.create_study(later)
    assert store.load("s1").spec == a_spec()


def test_a_study_that_asks_for_something_else_is_not_joined(store: Store) -> None:
    store.create_study(a_spec())
    with pytest.raises(StoreError, match=r"s1 exists and asks for something else \(budget, seed\)"):
        store.create_study(a_spec(trials=21, seed=3))


def test_a_deleted_study_is_gone_and_its_name_free(store: Store) -> None:
    store.create_study(a_spec())
    store.claim("s1", "me")
    store.add(a_record(0))
    store.claim("s1", "me")
    store.delete("s1")
    assert store.studies() == ()
    store.create_study(a_spec())
    assert store.load("s1").records == ()
    assert store.claims("s1") == ()
    assert store.claim("s1", "me") == 0


def test_an_unknown_study_is_named_by_every_method(store: Store) -> None:
    for ask in (
        lambda: store.load("none"),
        lambda: store.claim("none", "me"),
        lambda: store.add(a_record(0, study="none")),
        lambda: store.records_since("none", ()),
        lambda: store.claims("none"),
        lambda: store.abandon_dead("none"),
        lambda: store.heartbeat("none"),
        lambda: store.finish("none", None, "finished"),
        lambda: store.state("none"),
        lambda: store.set_state("none", "queued"),
        lambda: store.delete("none"),
    ):
        with pytest.raises(StoreError, match="no study none in"):
            ask()


def test_numbers_are_claimed_in_order_up_to_the_bound(store: Store) -> None:
    store.create_study(a_spec())
    assert [store.claim("s1", "me", below=2) for _ in range(3)] == [0, 1, None]
    assert store.claim("s1", "me", below=3) == 2
    assert store.claim("s1", "me") == 3


def test_a_claim_is_replaced_by_its_record(store: Store) -> None:
    store.create_study(a_spec())
    store.claim("s1", "me")
    (claim,) = store.claims("s1")
    assert (claim.number, claim.state, claim.owner) == (0, "running", "me")
    assert "running since" in claim.text
    store.add(a_record(0))
    assert store.claims("s1") == ()


def test_a_record_that_nobody_claimed_takes_its_number(store: Store) -> None:
    store.create_study(a_spec())
    store.add(a_record(4, Status.CRASHED))
    assert store.claim("s1", "me") == 5


def test_a_living_driver_is_not_abandoned(store: Store) -> None:
    store.create_study(a_spec())
    store.claim("s1", "me")
    assert store.abandon_dead("s1") == []
    assert store.claims("s1")[0].state == "running"


def test_what_a_driver_holds_when_it_finishes_is_handed_out_again(store: Store) -> None:
    store.create_study(a_spec())
    store.claim("s1", "me")
    store.claim("s1", "me")
    store.add(a_record(1))
    store.finish("s1", an_outcome(), "interrupted")
    assert [(c.number, c.state) for c in store.claims("s1")] == [(0, "abandoned")]
    assert [store.claim("s1", "me", below=3) for _ in range(3)] == [0, 2, None]


def test_an_abandoned_number_beyond_a_lowered_bound_stays(store: Store) -> None:
    store.create_study(a_spec())
    for _ in range(2):
        store.claim("s1", "me")
    store.finish("s1", None, "interrupted")
    assert [store.claim("s1", "me", below=1) for _ in range(2)] == [0, None]


def test_a_heartbeat_is_cheap_to_repeat(store: Store) -> None:
    store.create_study(a_spec())
    store.claim("s1", "me")
    store.heartbeat("s1")
    before = store.claims("s1")
    store.heartbeat("s1")
    assert store.claims("s1") == before
