"""The Python client against a real service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from autotune.client import Client, ServiceError

_CHECKOUT = Path(__file__).parents[1]
_TOKEN = "a token of this test"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    out = tmp_path_factory.mktemp("service") / "runs"
    command = [sys.executable, "-m", "autotune", "serve", "--port", "0", "--out", str(out)]
    service = subprocess.Popen(
        [*command, "--token", _TOKEN],
        cwd=_CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert service.stdout is not None
    try:
        yield service.stdout.readline().split()[-1]
    finally:
        service.send_signal(signal.SIGINT)
        service.communicate(timeout=60)


@pytest.fixture
def client(address: str) -> Client:
    return Client(address, token=_TOKEN)


@pytest.mark.slow
def test_a_study_is_queued_watched_and_handed_over(client: Client) -> None:
    study = client.tune("tiny", runner="toy", trials=5, strategy="random", study="first")
    assert study == "first"
    events = list(client.watch(study))
    trials = [event for event in events if event["event"] == "trial"]
    assert sorted(event["number"] for event in trials) == list(range(5))
    assert events[-1] == {"event": "state", "state": "finished"}
    assert client.wait(study)["state"] == "finished"
    assert [row["name"] for row in client.studies()] == ["first"]
    assert len(client.trials(study)) == 5
    best = yaml.safe_load(client.export(study))
    assert best["runner"] == "toy"
    one = yaml.safe_load(client.export(study, "yaml", trial=2))
    assert one["trial"] == 2
    assert client.report(study).startswith("<!doctype html>")
    client.delete(study)
    assert client.studies() == []


def test_a_refusal_is_the_services_own_line(client: Client) -> None:
    for call, status, words in (
        (lambda: client.show("none"), 404, "no study none"),
        (lambda: client.tune("tini"), 409, "unknown model tini; did you mean tiny?"),
        (lambda: client.tune("tiny", trials=0), 422, "trials: "),
        (lambda: client.tune("tiny", trails=1), 422, "trails: Extra inputs are not permitted"),
        (lambda: client.show("../health"), None, ""),
    ):
        with pytest.raises(ServiceError) as raised:
            call()
        assert status is None or raised.value.status == status
        assert words in str(raised.value)
        assert "\n" not in str(raised.value)


def test_the_token_is_needed(address: str) -> None:
    with pytest.raises(ServiceError) as raised:
        Client(address, token="wrong").studies()
    assert raised.value.status == 401
    assert Client(address).health()["status"] == "ok"


def test_the_catalogue_is_filtered(client: Client) -> None:
    assert {"tiny", "llama-7b"} <= {model["name"] for model in client.models()}
    assert 0 < len(client.knobs(task="serve")) < len(client.knobs())


def test_a_service_that_is_not_there_is_named() -> None:
    with pytest.raises(ServiceError, match=r"no service at http://127\.0\.0\.1:1"):
        Client("http://127.0.0.1:1").health()
