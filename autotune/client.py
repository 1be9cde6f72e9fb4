"""A client of ``autotune serve`` that needs nothing but Python.

from autotune.client import Client

service = Client("http://127.0.0.1:8080", token="...")
study = service.tune("llama-7b", task="train", budget="10m")
for event in service.watch(study):
    print(event)
print(service.export(study, "yaml"))
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

_ANSWER_SECONDS = 330.0  # a report of thousands of trials is built while one waits
_SILENCE_SECONDS = 60.0  # the service says that it is there four times as often


class ServiceError(RuntimeError):
    """The service refused or is not there; one line. ``status`` is the HTTP status, or None."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """One service. Every method raises ServiceError."""

    def __init__(self, url: str = "http://127.0.0.1:8080", token: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def health(self) -> dict[str, Any]:
        """Whether the service is up, which studies run and which wait."""
        return dict(self._json("GET", "/api/health"))

    def tune(self, model: str, **fields: Any) -> str:
        """Queue a study with the fields of ``autotune tune``; its name."""
        return str(self._json("POST", "/api/studies", {"model": model, **fields})["name"])

    def studies(self) -> list[dict[str, Any]]:
        """Every study, newest first."""
        return list(self._json("GET", "/api/studies"))

    def show(self, study: str) -> dict[str, Any]:
        """Where a study stands."""
        return dict(self._json("GET", _path(study)))

    def trials(self, study: str) -> list[dict[str, Any]]:
        """Every record of a study."""
        return list(self._json("GET", _path(study, "trials")))

    def watch(self, study: str) -> Iterator[dict[str, Any]]:
        """Each trial and each change of state as it happens, until the study ends.

        Every event has a key ``event``: ``trial`` or ``state``.
        """
        kind = ""
        with self._open("GET", _path(study, "events"), timeout=_SILENCE_SECONDS) as answer:
            for line in answer:
                field, _, value = line.decode().rstrip("\n").partition(": ")
                if field == "event":
                    kind = value
                elif field == "data":
                    yield {"event": kind, **json.loads(value)}

    def wait(self, study: str) -> dict[str, Any]:
        """Wait until a study ends; where it stands then."""
        for _ in self.watch(study):
            pass
        return self.show(study)

    def stop(self, study: str) -> str:
        """Stop a study, keeping what is finished; its state."""
        return str(self._json("POST", _path(study, "stop"))["state"])

    def resume(self, study: str) -> str:
        """Queue a stopped study again; its state."""
        return str(self._json("POST", _path(study, "resume"))["state"])

    def delete(self, study: str) -> None:
        """Forget a study that is not running."""
        self._json("DELETE", _path(study))

    def report(self, study: str) -> str:
        """The report as one HTML page."""
        return self._text("GET", _path(study, "report"))

    def export(self, study: str, form: str = "yaml", trial: int | None = None) -> str:
        """The best configuration, or one trial's, in a format of ``autotune export``."""
        query = "" if trial is None else f"?{urlencode({'trial': trial})}"
        return self._text("GET", _path(study, "exports", form) + query)

    def knobs(self, **filters: str | bool) -> list[dict[str, Any]]:
        """The catalogue, filtered by ``task``, ``device`` or ``live``."""
        return list(self._json("GET", f"/api/knobs?{urlencode(filters)}")["knobs"])

    def models(self) -> list[dict[str, Any]]:
        """The models known by name."""
        return list(self._json("GET", "/api/models"))

    def _json(self, method: str, path: str, body: Any = None) -> Any:
        return json.loads(self._text(method, path, body))

    def _text(self, method: str, path: str, body: Any = None) -> str:
        with self._open(method, path, body, timeout=_ANSWER_SECONDS) as answer:
            return str(answer.read().decode())

    def _open(self, method: str, path: str, body: Any = None, *, timeout: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Content-Type": "application/json"}
        request = Request(self._url + path, data=data, headers=headers, method=method)
        try:
            return urlopen(request, timeout=timeout)
        except HTTPError as error:
            with error:
                raise ServiceError(_detail(error), error.code) from None
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise ServiceError(f"no service at {self._url}: {reason}") from None


def _path(study: str, *more: str) -> str:
    return "/".join(["/api/studies", *(quote(part, safe="") for part in (study, *more))])


def _detail(error: HTTPError) -> str:
    """The service's own words: a line, or where a field of the request is wrong."""
    text = error.read().decode(errors="replace")
    try:
        detail = json.loads(text)["detail"]
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
    if isinstance(detail, str):
        return detail
    return "; ".join(f"{'.'.join(map(str, d['loc'][1:]))}: {d['msg']}" for d in detail)
