"""What the OpenAPI document promises holds for requests that nobody would write by hand."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest
import schemathesis
from fastapi import FastAPI

from autotune.service.app import make_app
from autotune.service.guard import Guard
from autotune.service.runner import Runner
from autotune.store import Store
from tests import report_studies


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    """A service with a finished study; no runner looks at the queue."""
    out = tmp_path_factory.mktemp("fuzz")
    url = f"sqlite:///{out / 'autotune.db'}"
    store = Store(url)
    study = report_studies.finished(12)
    store.create_study(study.spec)
    for record in study.records:
        store.add(record)
    store.finish(study.spec.name, study.outcome, "finished")
    yield make_app(store, Runner(store=url, out=out), Guard(token=None, loopback_only=False))
    store.close()


_SETTINGS = hypothesis.settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


def test_no_request_breaks_the_service_or_the_document(app: FastAPI) -> None:
    """No 5xx, no answer that the document does not describe, whatever is sent."""
    document = schemathesis.openapi.from_asgi("/api/openapi.json", app)
    # Events of a queued study have no end; tests/test_client.py watches them.
    tried = []
    for found in document.exclude(path_regex="/events$").get_all_operations():
        operation = found.ok()
        tried.append(operation.label)

        @_SETTINGS
        @hypothesis.given(case=operation.as_strategy())
        def holds(case: schemathesis.Case) -> None:
            case.call_and_validate()

        holds()
    assert "POST /api/studies" in tried
    assert len(tried) >= 12
