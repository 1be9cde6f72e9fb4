"""The REST API."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, HTTPException, Path, Query
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse

from autotune import catalogue, space_file
from autotune.knob_json import knob_json
from autotune.service.desk import Desk, NotThere, Refused
from autotune.service.schema import (
    Created,
    Done,
    Health,
    Knobs,
    Problem,
    StudyPage,
    StudyRequest,
    StudyRow,
)
from autotune.space import SpaceError
from autotune.trial import to_json

NAME = re.compile(r"^[A-Za-z0-9][\w.-]{0,79}$")
Name = Annotated[str, Path(pattern=NAME.pattern, max_length=80)]
_REFUSED: dict[int | str, dict[str, Any]] = {409: {"model": Problem}}
_MISSING: dict[int | str, dict[str, Any]] = {404: {"model": Problem}}
# Where the answer is no JSON but the refusal is: FastAPI would give both the answer's media type.
_REFUSAL = {"content": {"application/json": {"schema": Problem.model_json_schema()}}}
_NOT_JSON: dict[int | str, dict[str, Any]] = {
    404: {**_REFUSAL, "description": "No such study"},
    409: {**_REFUSAL, "description": "Not possible now"},
}
_WATCH_SECONDS = 0.5
_KEEP_ALIVE_SECONDS = 15.0

T = TypeVar("T")


def make_router(desk: Desk) -> APIRouter:
    """Every route under /api, and /metrics."""
    router = APIRouter()
    _host_routes(router, desk)
    _study_routes(router, desk)
    _result_routes(router, desk)
    return router


def asked(call: Callable[[], T]) -> T:
    """Turn the desk's refusals into HTTP answers."""
    try:
        return call()
    except NotThere as error:
        raise HTTPException(404, str(error)) from None
    except Refused as error:
        raise HTTPException(409, str(error)) from None


def _host_routes(router: APIRouter, desk: Desk) -> None:
    @router.get("/api/health")
    def health() -> Health:
        """Whether the service is up, and what runs."""
        rows = desk.rows()
        return Health(
            status="ok",
            running=[r.name for r in rows if r.state == "running"],
            queued=[r.name for r in rows if r.state == "queued"],
        )

    @router.get("/api/models")
    def models() -> list[dict[str, Any]]:
        """The models known by name."""
        return [space_file.load_model(name) for name in space_file.model_names()]

    @router.get("/api/knobs", responses=_REFUSED)
    def knobs(
        task: Annotated[str | None, Query(pattern="^(train|serve)$")] = None,
        device: Annotated[str | None, Query(pattern="^(cpu|cuda)$")] = None,
        live: bool = False,
    ) -> Knobs:
        """The catalogue."""
        try:
            found = catalogue.listed(task=task, device=device, live=live)
        except SpaceError as error:
            raise HTTPException(409, str(error)) from None
        return Knobs(count=len(found), knobs=[knob_json(k) for k in found])

    @router.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> str:
        """Prometheus text format."""
        rows = desk.rows()
        lines = ["# TYPE autotune_studies gauge"]
        for state in ("queued", "running", "finished", "interrupted", "failed"):
            count = sum(row.state == state for row in rows)
            lines.append(f'autotune_studies{{state="{state}"}} {count}')
        lines += ["# TYPE autotune_trials_total counter"]
        lines.append(f"autotune_trials_total {sum(row.trials for row in rows)}")
        return "\n".join(lines) + "\n"


def _study_routes(router: APIRouter, desk: Desk) -> None:
    @router.get("/api/studies")
    def studies() -> list[StudyRow]:
        """Every study, newest first."""
        return [
            StudyRow(name=r.name, state=r.state, trials=r.trials, created_at=r.created_at)
            for r in desk.rows()
        ]

    @router.post("/api/studies", status_code=201, responses=_REFUSED)
    def create(request: StudyRequest) -> Created:
        """Queue a study; it starts when the devices are free."""
        name, notices = asked(lambda: desk.create(request))
        return Created(name=name, notices=list(notices))

    @router.get("/api/studies/{name}", responses=_MISSING)
    def show(name: Name) -> StudyPage:
        """Where a study stands."""
        return StudyPage.model_validate(asked(lambda: desk.page(name)))

    @router.delete("/api/studies/{name}", responses=_MISSING | _REFUSED)
    def delete(name: Name) -> Done:
        """Forget a study that is not running."""
        asked(lambda: desk.delete(name))
        return Done(name=name, state="deleted")

    @router.post("/api/studies/{name}/stop", responses=_MISSING | _REFUSED)
    def stop(name: Name) -> Done:
        """Stop a study; what is finished is kept."""
        return Done(name=name, state=asked(lambda: desk.stop(name)))

    @router.post("/api/studies/{name}/resume", responses=_MISSING | _REFUSED)
    def resume(name: Name) -> Done:
        """Queue a stopped study again."""
        return Done(name=name, state=asked(lambda: desk.resume(name)))


def _result_routes(router: APIRouter, desk: Desk) -> None:
    @router.get("/api/studies/{name}/trials", responses=_MISSING)
    def trials(name: Name) -> list[dict[str, Any]]:
        """Every record."""
        return [to_json(r) for r in asked(lambda: desk.load(name)).records]

    @router.get("/api/studies/{name}/events", responses=_NOT_JSON, response_class=StreamingResponse)
    async def events(name: Name) -> StreamingResponse:
        """Server-sent events: one ``trial`` per record, ``state`` on change, to the end."""
        await asyncio.to_thread(lambda: asked(lambda: desk.load(name)))
        return StreamingResponse(_events(desk, name), media_type="text/event-stream")

    @router.get("/api/studies/{name}/report", responses=_NOT_JSON, response_class=HTMLResponse)
    def report(name: Name) -> HTMLResponse:
        """The report as the study stands."""
        path = asked(lambda: desk.report(name))
        return HTMLResponse(path.read_text(encoding="utf-8"))

    @router.get(
        "/api/studies/{name}/compare/{other}",
        responses=_NOT_JSON,
        response_class=HTMLResponse,
    )
    def compare(name: Name, other: Name) -> HTMLResponse:
        """Two studies side by side, as a page."""
        return HTMLResponse(asked(lambda: desk.comparison(name, other)))

    @router.get(
        "/api/studies/{name}/exports/{form}",
        responses=_NOT_JSON,
        response_class=PlainTextResponse,
    )
    def exports(
        name: Name,
        form: Annotated[str, Path(pattern="^[a-z]{3,12}$")],
        trial: Annotated[int | None, Query(ge=0, le=10_000_000)] = None,
    ) -> PlainTextResponse:
        """The best configuration (or one trial's) in a format of ``autotune export``."""
        text = asked(lambda: desk.export(name, form, trial))
        file = "best.yaml" if form == "yaml" else f"best.{form}"
        headers = {"Content-Disposition": f'attachment; filename="{file}"'}
        return PlainTextResponse(text, headers=headers)


async def _events(desk: Desk, name: str) -> AsyncIterator[str]:
    seen: set[int] = set()
    state, quiet = "", 0.0
    while True:
        try:
            # The state first: a record that lands after it is told in the next round, while one
            # that landed between the records and an end would never be told.
            now = await asyncio.to_thread(lambda: desk.store.state(name))
            news = await asyncio.to_thread(lambda: list(desk.news(name, seen)))
        except LookupError:
            return
        for record in news:
            yield _event("trial", _brief(to_json(record)))
        if now != state:
            state = now
            yield _event("state", {"state": state})
            if state in ("finished", "failed", "interrupted"):
                return
        quiet = 0.0 if news else quiet + _WATCH_SECONDS
        if quiet >= _KEEP_ALIVE_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(_WATCH_SECONDS)


def _brief(record: dict[str, Any]) -> dict[str, Any]:
    """What a watcher needs of a record; the whole of it is under /trials."""
    measurement = record["measurement"] or {}
    spec = record["spec"]
    return {
        "number": spec["number"],
        "stage": spec["stage"],
        "label": spec["label"],
        "status": record["status"],
        "wall_seconds": record["wall_seconds"],
        "metrics": measurement.get("metrics", {}),
        "telemetry": measurement.get("telemetry", {}),
        "failure": (record["failure"] or {}).get("reason", ""),
    }


def _event(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, allow_nan=False)}\n\n"
