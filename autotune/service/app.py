"""The application: routes of the API and of the pages, put together behind the guard."""

from __future__ import annotations

from fastapi import FastAPI

from autotune.service import api, pages
from autotune.service.desk import Desk
from autotune.service.guard import Guard, GuardedApp
from autotune.service.runner import Runner
from autotune.store import Store


def make_app(store: Store, runner: Runner, guard: Guard) -> GuardedApp:
    """The ASGI application over an open store."""
    app = FastAPI(
        title="autotune",
        version="1",
        description="Queue tuning studies, watch them live, browse reports, fetch exports.",
        docs_url=None,  # its page loads scripts from another host
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    desk = Desk(store=store, runner=runner)
    app.include_router(api.make_router(desk))
    app.include_router(pages.make_router(desk, guard))
    return GuardedApp(app, guard)
