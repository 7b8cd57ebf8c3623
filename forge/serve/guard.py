"""Who may ask: pages of this server alone, by a name of this machine."""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from forge.serve.answers import error_body

LOCAL = ("127.0.0.1", "localhost", "::1")
SECURE = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; connect-src 'self'; img-src data:; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
}


class Guard:
    """Refuses requests of pages of other sites, and under names that are not local.

    A page of another site could ask a server of this machine, and under a name of its own that
    leads to this machine (DNS rebinding) read the answers. any_host: names are not looked at.
    statuses: counts the status codes of all answers.
    """

    def __init__(self, app: Any, *, any_host: bool, statuses: Counter[int]) -> None:
        self.app, self.any_host, self.statuses = app, any_host, statuses

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if (fault := self._fault(Headers(scope=scope))) is not None:
            self.statuses[403] += 1
            await JSONResponse(error_body(403, fault), 403)(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.statuses[message["status"]] += 1
                added = [(name.encode(), value.encode()) for name, value in SECURE.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self.app(scope, receive, with_headers)

    def _fault(self, headers: Headers) -> str | None:
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        if not self.any_host and _split(f"http://{host}").hostname not in LOCAL:
            return "this server is asked as localhost or 127.0.0.1; start it with --host for others"
        if origins and (len(origins) > 1 or _split(origins[0].lower()).netloc != host):
            return "pages of another origin may not ask this server"
        return None


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")
