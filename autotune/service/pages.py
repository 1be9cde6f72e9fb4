"""The pages: rendered on the server, with a little plain JavaScript; nothing from another host."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Form, HTTPException, Query
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from autotune import request as rq
from autotune import space_file
from autotune.metric import METRICS
from autotune.service.api import NAME, Name, asked
from autotune.service.desk import Desk
from autotune.service.guard import COOKIE, Guard

_HERE = Path(__file__).parent
_PAGES = Environment(
    loader=FileSystemLoader(_HERE / "pages"), autoescape=True, undefined=StrictUndefined
)
_SECURITY = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
_STATIC = ("page.css", "page.js", "watch.js", "start.js")
_A_WEEK_SECONDS = 7 * 24 * 3600


def _page(template: str, /, **values: Any) -> HTMLResponse:
    return HTMLResponse(_PAGES.get_template(template).render(**values), headers=_SECURITY)


def _plotly() -> Path | None:
    """plotly.js as plotly's package ships it; found without importing the package."""
    found = importlib.util.find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return path if path.is_file() else None


def make_router(desk: Desk, guard: Guard) -> APIRouter:
    """Every page and its static files."""
    router = APIRouter(include_in_schema=False)
    _static_routes(router)
    _login_routes(router, guard)

    @router.get("/")
    def home() -> HTMLResponse:
        return _page("home.html", studies=desk.rows())

    @router.get("/compare")
    def compare(study: Annotated[list[str], Query(max_length=2)] = []) -> Response:  # noqa: B006
        chosen = [name for name in study if NAME.match(name)]
        if len(chosen) != 2:
            raise HTTPException(409, "choose two studies to compare")
        return RedirectResponse(f"/api/studies/{chosen[0]}/compare/{chosen[1]}", status_code=303)

    @router.get("/new")
    def new() -> HTMLResponse:
        return _page(
            "new.html",
            models=space_file.model_names(),
            goals=rq.GOALS,
            strategies=rq.STRATEGIES,
            metrics=sorted(METRICS),
            knobs=space_file.load_catalogue().knobs,
        )

    @router.get("/studies/{name}")
    def study(name: Name) -> HTMLResponse:
        loaded = asked(lambda: desk.load(name))
        return _page(
            "study.html",
            name=name,
            state=loaded.state,
            spec=loaded.spec,
            objective=loaded.spec.objectives[0],
        )

    return router


def _static_routes(router: APIRouter) -> None:
    @router.get("/static/plotly.min.js")
    def plotly() -> Response:
        path = _plotly()
        if path is None:
            raise HTTPException(404, "plotly is not installed")
        return FileResponse(path, media_type="text/javascript")

    @router.get("/static/{file}")
    def static(file: str) -> Response:
        if file not in _STATIC:
            raise HTTPException(404, "no such file")
        return FileResponse(_HERE / "static" / file)


def _login_routes(router: APIRouter, guard: Guard) -> None:
    @router.get("/login")
    def login() -> HTMLResponse:
        return _page("login.html", wrong=False)

    @router.post("/login")
    def enter(token: Annotated[str, Form(max_length=1000)]) -> Response:
        if not guard.is_right(token):
            page = _page("login.html", wrong=True)
            page.status_code = 401
            return page
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", max_age=_A_WEEK_SECONDS)
        return answer
