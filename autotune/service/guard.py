"""Who may talk to the service: token, host and origin checks, and the size of a body."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "autotune_token"
LARGEST_BODY_BYTES = 1 << 20
_OPEN_PATHS = ("/login", "/static/page.css", "/api/health")
_LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The rules; ``refusal`` is the reason for turning a request away, with its HTTP status."""

    token: str | None
    loopback_only: bool

    def is_right(self, token: str) -> bool:
        """Constant-time comparison, so that timing tells nothing."""
        return self.token is not None and hmac.compare_digest(token.encode(), self.token.encode())

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """None when the request may pass."""
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        if self.loopback_only and name not in _LOCAL_NAMES:
            # A foreign page may have pointed its own name at this machine (DNS rebinding).
            return 421, "this service answers to localhost only"
        if scope["method"] not in _SAFE_METHODS and not _same_site(headers):
            return 403, "cross-site request refused"
        if self.token is None or scope["path"] in _OPEN_PATHS:
            return None
        return None if self.is_right(_token_in(headers)) else (401, "a valid token is needed")


def _same_site(headers: dict[str, str]) -> bool:
    """Browsers send Origin or Sec-Fetch-Site with every cross-site post; programs send neither."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


def _token_in(headers: dict[str, str]) -> str:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


class GuardedApp:
    """ASGI layer in front of everything: applies the guard and bounds every body."""

    def __init__(self, app: App, guard: Guard) -> None:
        self.app = app
        self.guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with the refusal."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self.guard.refusal(scope)
        if refusal is None and _announced_size(scope) > LARGEST_BODY_BYTES:
            refusal = 413, f"a body may have {LARGEST_BODY_BYTES} bytes"
        if refusal is not None:
            await _answer(send, *refusal, page=_wants_page(scope))
            return
        await self.app(scope, _bounded(receive), send)


def _announced_size(scope: Scope) -> int:
    for key, value in scope["headers"]:
        if key.lower() == b"content-length":
            return int(value) if value.isdigit() else LARGEST_BODY_BYTES + 1
    return 0


def _bounded(receive: Receive) -> Receive:
    """A chunked body announces no size: cut it off where it grows too large."""
    seen = 0

    async def bounded() -> MutableMapping[str, Any]:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > LARGEST_BODY_BYTES:
            return {"type": "http.disconnect"}
        return message

    return bounded


def _wants_page(scope: Scope) -> bool:
    """Whether a browser asks: it is sent to the sign-in page, a program gets 401."""
    accepted = next((v for k, v in scope["headers"] if k.lower() == b"accept"), b"")
    return scope["method"] == "GET" and b"text/html" in accepted


async def _answer(send: Send, status: int, reason: str, *, page: bool) -> None:
    headers = [(b"content-type", b"application/json")]
    if status == 401 and page:
        status, headers = 303, [(b"location", b"/login")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    body = f'{{"detail": "{reason}"}}'.encode()
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
