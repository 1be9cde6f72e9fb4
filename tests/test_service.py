"""The service: who may in, what is refused, and a study from the queue to its exports."""

from __future__ import annotations

import time

import pytest
from fastapi.testclient import TestClient

from autotune.service.app import make_app
from autotune.service.guard import LARGEST_BODY_BYTES, Guard
from autotune.service.runner import Runner
from autotune.service.server import ServiceError, is_loopback, serve
from autotune.store import Store
from tests import report_studies

HERE = "http://127.0.0.1"


@pytest.fixture
def made(tmp_path):
    def make(token=None, loopback=True):
        url = f"sqlite:///{tmp_path / 'autotune.db'}"
        store = Store(url)
        runner = Runner(store=url, out=tmp_path)
        app = make_app(store, runner, Guard(token=token, loopback_only=loopback))
        stores.append(store)
        return TestClient(app, base_url=HERE), store, runner

    stores: list[Store] = []
    yield make
    for store in stores:
        store.close()


def queue(client, **fields):
    return client.post("/api/studies", json={"model": "toy", "runner": "toy", **fields})


def test_a_token_is_demanded_for_everything_but_health_and_login(made):
    client, _, _ = made(token="right")
    assert client.get("/api/health").status_code == 200
    assert client.get("/login").status_code == 200
    for path in ("/api/studies", "/api/knobs", "/metrics", "/static/page.js", "/api/openapi.json"):
        assert client.get(path).status_code == 401, path
    browser = client.get("/", headers={"accept": "text/html"}, follow_redirects=False)
    assert browser.headers["location"] == "/login"
    wrong = {"authorization": "Bearer wrong"}
    assert client.get("/api/studies", headers=wrong).status_code == 401
    right = {"authorization": "Bearer right"}
    assert client.get("/api/studies", headers=right).status_code == 200


def test_signing_in_sets_a_cookie_that_scripts_cannot_read(made):
    client, _, _ = made(token="right")
    assert client.post("/login", data={"token": "wrong"}).status_code == 401
    answer = client.post("/login", data={"token": "right"}, follow_redirects=False)
    assert answer.status_code == 303
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    "headers", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}]
)
def test_posts_from_other_sites_are_refused(made, headers):
    client, store, _ = made()
    answer = client.post("/api/studies", json={"model": "toy", "runner": "toy"}, headers=headers)
    assert answer.status_code == 403
    assert store.studies() == ()


def test_a_foreign_name_for_this_machine_is_refused(made):
    client, _, _ = made()
    assert client.get("/api/studies", headers={"host": "evil.example"}).status_code == 421


def test_an_oversized_body_is_refused_announced_or_not(made):
    client, _, _ = made()
    big = b"x" * (LARGEST_BODY_BYTES + 1)
    assert client.post("/api/studies", content=big).status_code == 413
    chunks = (big[:1000] for _ in range(LARGEST_BODY_BYTES // 1000 + 2))
    answer = client.post("/api/studies", content=chunks)
    assert answer.status_code in (400, 413, 422)


@pytest.mark.parametrize("name", ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e", "a/b"])
def test_paths_that_leave_the_folder_lead_nowhere(made, name):
    client, _, _ = made()
    for path in (f"/api/studies/{name}/report", f"/static/{name}", f"/studies/{name}"):
        assert client.get(path).status_code in (404, 422), path


def test_any_other_address_needs_a_token(tmp_path):
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    with pytest.raises(ServiceError, match="--token"):
        serve(host="0.0.0.0", port=0, token=None, store="", out=tmp_path)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"trials": 0}, 422),
        ({"commnd": "x"}, 422),
        ({"command": "rm -rf /"}, 422),
        ({"study": "../x"}, 422),
        ({"runner": "torch", "model": "/etc"}, 409),
        ({"limits": ["speed<=1"]}, 409),
        ({"budget": "soon"}, 409),
    ],
)
def test_bad_requests_say_why_and_queue_nothing(made, fields, status):
    client, store, _ = made()
    answer = queue(client, **fields)
    assert answer.status_code == status
    assert answer.json()["detail"]
    assert store.studies() == ()


def test_a_queued_study_can_be_taken_off_queued_again_and_deleted(made):
    client, store, _ = made()
    assert queue(client, study="a", trials=3).json()["name"] == "a"
    assert queue(client, study="a", trials=3).status_code == 409
    assert store.state("a") == "queued"
    assert client.post("/api/studies/a/stop").json()["state"] == "interrupted"
    assert client.post("/api/studies/a/resume").json()["state"] == "queued"
    assert client.delete("/api/studies/a").json()["state"] == "deleted"
    assert client.get("/api/studies/a").status_code == 404


@pytest.mark.slow
def test_a_study_runs_from_the_queue_to_its_export_in_a_process_of_its_own(made):
    client, store, runner = made()
    queue(client, study="a", trials=8)
    runner.start()
    try:
        limit = time.monotonic() + 150
        while store.state("a") not in ("finished", "failed") and time.monotonic() < limit:
            time.sleep(0.5)
    finally:
        runner.stop()
    assert store.state("a") == "finished"
    page = client.get("/api/studies/a").json()
    assert page["trials"] == 8
    assert "prec" in client.get("/api/studies/a/exports/yaml").text
    events = client.get("/api/studies/a/events").text
    assert events.count("event: trial") == 8
    assert client.get("/studies/a").status_code == 200
    assert "autotune_trials_total 8" in client.get("/metrics").text


def test_a_trial_that_lands_just_before_the_end_is_told(tmp_path):
    study = report_studies.finished(12)

    class Late(Store):
        """The last trial and the end come right after a watcher has read the records."""

        def records_since(self, name, seen):
            found = super().records_since(name, seen)
            if self.state(name) == "running":
                self.add(study.records[-1])
                self.finish(name, study.outcome, "finished")
            return found

    url = f"sqlite:///{tmp_path / 'autotune.db'}"
    store = Late(url)
    try:
        store.create_study(study.spec)
        for record in study.records[:-1]:
            store.add(record)
        runner = Runner(store=url, out=tmp_path)
        app = make_app(store, runner, Guard(token=None, loopback_only=True))
        name = study.spec.name
        events = TestClient(app, base_url=HERE).get(f"/api/studies/{name}/events").text
    finally:
        store.close()
    assert events.count("event: trial") == len(study.records)
    assert events.rstrip().endswith('{"state": "finished"}')


def test_the_form_lists_models_and_knobs(made):
    client, _, _ = made()
    page = client.get("/new").text
    assert "llama-7b" in page
    assert "train.micro_batch_size" in page
    script = client.get("/static/plotly.min.js")
    assert len(script.content) > 1_000_000
