"""Two models behind one address: a request names one, and a reader votes between their answers."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Call
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forge.serve.app import HANDLERS, NOBODY, Server, metrics_reply
from forge.serve.asking import Refusal
from forge.serve.engine import Engine
from forge.serve.guard import Guard
from forge.serve.loading import load_server
from forge.serve.votes import Votes


class SideBySide:
    """Hands each call to one of two servers; the first where no model is named."""

    def __init__(self, servers: Sequence[Server], votes: Votes) -> None:
        self.servers, self.votes = {server.name: server for server in servers}, votes
        self.first = servers[0]
        self.name = " and ".join(self.servers)
        self.statuses: Counter[int] = Counter()

    @property
    def engines(self) -> list[Engine]:
        return [server.engine for server in self.servers.values()]

    def app(self, *, any_host: bool = False) -> Any:
        """The ASGI application."""
        routes = [
            Route("/", self.first.page),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/votes", self.vote, methods=["GET", "POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
        ]
        app = Starlette(routes=routes, exception_handlers=HANDLERS)
        return Guard(app, any_host=any_host, statuses=self.statuses)

    async def health(self, call: Call) -> Response:
        usable = all(engine.usable for engine in self.engines)
        state = {"status": "ok" if usable else "closing", "model": self.name}
        return JSONResponse(state, 200 if usable else 503)

    async def metrics(self, call: Call) -> Response:
        """The counts of each model, with its name."""
        lines = []
        for name, server in self.servers.items():
            label = f"{{model={json.dumps(name)}}}"
            lines += [f"forge_{key}{label} {value}" for key, value in server.counts().items()]
        return metrics_reply(lines, self.statuses)

    async def models(self, call: Call) -> Response:
        data = [server.about() for server in self.servers.values()]
        return JSONResponse({"object": "list", "data": data})

    async def model(self, call: Call) -> Response:
        return JSONResponse(self._named(call.path_params["name"]).about())

    async def chat(self, call: Call) -> Response:
        return await self._answer(call, chat=True)

    async def complete(self, call: Call) -> Response:
        return await self._answer(call, chat=False)

    async def vote(self, call: Call) -> Response:
        """The tally; after a POST with the new vote."""
        if call.method == "GET":
            return JSONResponse(self.votes.tally())
        return JSONResponse(self.votes.add(await self.first.body_of(call)))

    async def _answer(self, call: Call, *, chat: bool) -> Response:
        try:
            body = await self.first.body_of(call)
        except ClientDisconnect:
            return Response(status_code=NOBODY)
        server = self._named(body.get("model", self.first.name))
        return await server.answer_body(call, body, chat=chat)

    def _named(self, name: Any) -> Server:
        """The server of a model. Raises Refusal."""
        if not isinstance(name, str) or name not in self.servers:
            known = " and ".join(map(repr, self.servers))
            message = f"there is no model {str(name)[:100]!r}; models are {known}"
            raise Refusal(404, message, param="model")
        return self.servers[name]


def load_both(
    paths: Sequence[tuple[Path, Sequence[str]]], weights: str, options: argparse.Namespace
) -> SideBySide:
    """Load two checkpoints, each with what is trusted, by the options of forge.serve.

    ValueError: both are one, or votes cannot be kept where they are to be.
    """
    (first, _), (second, _) = paths
    if first.resolve() == second.resolve():
        raise ValueError(f"{first} and {second} are one model: give two to compare")
    servers = [load_server(path, trust, weights, options) for path, trust in paths]
    if servers[0].name == servers[1].name:
        servers[0].name, servers[1].name = str(first), str(second)
    names = (servers[0].name, servers[1].name)
    return SideBySide(servers, Votes(options.votes, names, servers[0].limits))
