"""The paths of the server."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Call
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from forge.serve.answers import DONE, Writer, error_body, event
from forge.serve.asking import Refusal, asked_of, parse_body
from forge.serve.engine import Closed, Full, Piece, Request
from forge.serve.guard import Guard
from forge.serve.served import Served
from forge.serve.votes import Votes

PAGE = Path(__file__).with_name("page.html")
PATIENCE = 30.0  # seconds for a body to arrive
NOBODY = 499  # the client has gone; nobody reads this


class Server:
    """Answers calls by one model, or by two whose answers a reader votes on."""

    def __init__(self, models: Sequence[Served], votes: Votes | None = None) -> None:
        self.models, self.votes = {model.name: model for model in models}, votes
        self.first = models[0]
        self.statuses: Counter[int] = Counter()

    def app(self, *, any_host: bool = False) -> Any:
        """The ASGI application."""
        routes = [
            Route("/", self.page),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/v1/models", self.list_models),
            Route("/v1/models/{name:path}", self.show_model),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
        ]
        if self.votes:
            routes.append(Route("/votes", self.vote, methods=["GET", "POST"]))
        handlers: Any = {HTTPException: _http_error, Refusal: _refusal, Exception: _failure}
        app = Starlette(routes=routes, exception_handlers=handlers)
        return Guard(app, any_host=any_host, statuses=self.statuses)

    async def page(self, call: Call) -> Response:
        return HTMLResponse(PAGE.read_text("utf-8"), headers={"cache-control": "no-cache"})

    async def health(self, call: Call) -> Response:
        usable = all(model.engine.usable for model in self.models.values())
        names = ", ".join(self.models)
        state = {"status": "ok" if usable else "closing", "model": names}
        return JSONResponse(state, 200 if usable else 503)

    async def metrics(self, call: Call) -> Response:
        """Counts in the text format of Prometheus; of two models each with its name."""
        lines = []
        for name, model in self.models.items():
            label = f"{{model={json.dumps(name)}}}" if len(self.models) > 1 else ""
            lines += [f"forge_{key}{label} {value}" for key, value in model.counts().items()]
        for status, count in sorted(self.statuses.items()):
            lines.append(f'forge_responses_total{{status="{status}"}} {count}')
        return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def list_models(self, call: Call) -> Response:
        data = [model.about() for model in self.models.values()]
        return JSONResponse({"object": "list", "data": data})

    async def show_model(self, call: Call) -> Response:
        return JSONResponse(self._named(call.path_params["name"]).about())

    async def chat(self, call: Call) -> Response:
        return await self._answer(call, chat=True)

    async def complete(self, call: Call) -> Response:
        return await self._answer(call, chat=False)

    async def vote(self, call: Call) -> Response:
        """The tally; after a POST with the new vote."""
        assert self.votes
        if call.method == "GET":
            return JSONResponse(self.votes.tally())
        body = parse_body(await _body(call, self.first.limits.body))
        return JSONResponse(self.votes.add(body))

    def _named(self, name: Any) -> Served:
        """The model of a name. Raises Refusal."""
        if not isinstance(name, str) or name not in self.models:
            known = " and ".join(map(repr, self.models))
            known = f"the model is {known}" if len(self.models) == 1 else f"models are {known}"
            message = f"there is no model {str(name)[:100]!r}; {known}"
            raise Refusal(404, message, param="model")
        return self.models[name]

    async def _answer(self, call: Call, *, chat: bool) -> Response:
        try:
            raw = await _body(call, self.first.limits.body)
        except ClientDisconnect:
            return Response(status_code=NOBODY)
        body = parse_body(raw)
        model = self._named(body.get("model", self.first.name))
        asked = asked_of(body, chat=chat, limits=model.limits)
        pieces: asyncio.Queue[Piece] = asyncio.Queue()
        prompt = await run_in_threadpool(model.encoded, asked)
        request = model.request(asked, prompt, _put(pieces), chat=chat)
        try:
            model.engine.submit(request)
        except Full:
            raise Refusal(429, "all slots are taken and the queue is full; try again") from None
        except Closed:
            raise Refusal(503, "the server is closing") from None
        writer = Writer(request, model.tokenizer, model.name, chat=chat)
        if asked.stream:
            return _Stream(request, _events(writer, _received(request, pieces), usage=asked.usage))
        return await _whole(call, writer, request, pieces)


class _Stream(StreamingResponse):
    """A stream of events; a client that goes away frees the slots."""

    def __init__(self, request: Request, events: AsyncIterator[bytes]) -> None:
        super().__init__(
            events, media_type="text/event-stream", headers={"cache-control": "no-store"}
        )
        self.request = request

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.request.cancel()


def _put(pieces: asyncio.Queue[Piece]) -> Callable[[Piece], None]:
    """Hand pieces from the engine's thread to the loop of this call."""
    loop = asyncio.get_running_loop()

    def put(piece: Piece) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

    return put


async def _body(call: Call, most: int) -> bytes:
    """The body. Raises Refusal for one of more than `most` bytes, or that does not arrive."""
    refusal = Refusal(413, f"the body has more than {most:,} bytes")
    stated = call.headers.get("content-length", "")
    if stated.isdecimal() and int(stated[:20]) > most:
        raise refusal
    parts, size = [], 0
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in call.stream():
                size += len(part)
                if size > most:
                    raise refusal
                parts.append(part)
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {PATIENCE:.0f} s") from None
    return b"".join(parts)


async def _received(request: Request, pieces: asyncio.Queue[Piece]) -> AsyncIterator[Piece]:
    """The pieces of a request, until all its answers have ended."""
    going = request.n
    while going:
        piece = await pieces.get()
        yield piece
        going = 0 if piece.error else going - (piece.finish is not None)


async def _events(
    writer: Writer, pieces: AsyncIterator[Piece], *, usage: bool
) -> AsyncIterator[bytes]:
    for number in range(writer.request.n if writer.chat else 0):
        yield event(writer.first(number))
    async for piece in pieces:
        if piece.error:
            yield event(error_body(500, piece.error))
            return
        yield event(writer.part(piece))
    if usage:
        yield event(writer.last())
    yield DONE


async def _whole(
    call: Call, writer: Writer, request: Request, pieces: asyncio.Queue[Piece]
) -> Response:
    """The answer at once, unless the client goes away before."""

    async def collect() -> list[Piece]:
        return [piece async for piece in _received(request, pieces)]

    async def until_gone() -> None:
        while (await call.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.create_task(collect()), asyncio.create_task(until_gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            return Response(status_code=NOBODY)
        collected: Any = tasks[0].result()
        if collected[-1].error:
            raise Refusal(500, collected[-1].error)
        return JSONResponse(writer.whole(collected))
    finally:
        request.cancel()
        for task in tasks:
            task.cancel()


async def _refusal(call: Call, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    headers = {"retry-after": "1"} if error.status in (429, 503) else None
    body = error_body(error.status, error.message, error.param)
    return JSONResponse(body, error.status, headers)


async def _http_error(call: Call, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    paths = "/v1/chat/completions, /v1/completions, /v1/models, /health, /metrics, /"
    detail = f"there is no such path; paths are {paths}"
    message = detail if error.status_code == 404 else str(error.detail)
    return JSONResponse(error_body(error.status_code, message), error.status_code, error.headers)


async def _failure(call: Call, error: Exception) -> Response:
    return JSONResponse(error_body(500, f"{type(error).__name__}"), 500)
