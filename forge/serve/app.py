"""The paths of the server."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Call
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from forge.data.tokenizers.render import encode_prompt, stated_ends, turn_end_ids
from forge.serve.answers import DONE, Writer, error_body, event
from forge.serve.asking import FORMAT, Asked, Limits, Refusal, asked_of, parse_body
from forge.serve.engine import Engine, EngineClosed, Full, Piece, Request
from forge.serve.guard import Guard
from forge.serve.json_guide import JSONGuide, JSONGuides
from forge.serve.new_weights import WeightReader

PAGE = Path(__file__).with_name("page.html")
PATIENCE = 30.0  # seconds for a body to arrive
UNREAD = (408, 413)  # statuses of bodies that were not read to their end
LINGERING = 1.0  # seconds until the connection of such a body is closed
NOBODY = 499  # the client has gone; nobody reads this


class Server:
    """Answers calls by an engine. name: of the model. talks: whether it was trained on chats."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        limits: Limits,
        *,
        talks: bool,
        weights: WeightReader | None = None,
    ) -> None:
        """weights: reads other weights on request; None = no request may."""
        self.engine, self.name, self.talks, self.weights = engine, name, talks, weights
        self.limits = replace(limits, tokens=engine.length, n=min(limits.n, engine.slots))
        self.tokenizer, self.created = engine.tokenizer, int(time.time())
        self.statuses: Counter[int] = Counter()
        of_answers = turn_end_ids(self.tokenizer).union(stated_ends(self.tokenizer))
        self.ends = {False: frozenset({self.tokenizer.end_id})}
        self.ends[True] = self.ends[False] | of_answers
        self.guides = {chat: JSONGuides(self.tokenizer, ends) for chat, ends in self.ends.items()}

    def app(self, *, any_host: bool = False) -> Any:
        """The ASGI application."""
        routes = [
            Route("/", self.page),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
        ]
        if self.weights is not None:
            routes.append(Route("/v1/load_weights", self.load_weights, methods=["POST"]))
        app = Starlette(routes=routes, exception_handlers=HANDLERS)
        return Guard(app, any_host=any_host, statuses=self.statuses)

    async def page(self, call: Call) -> Response:
        return HTMLResponse(PAGE.read_text("utf-8"), headers={"cache-control": "no-cache"})

    async def health(self, call: Call) -> Response:
        usable = self.engine.usable
        state = {"status": "ok" if usable else "closing", "model": self.name}
        return JSONResponse(state, 200 if usable else 503)

    async def metrics(self, call: Call) -> Response:
        """Counts in the text format of Prometheus."""
        lines = [f"forge_{name} {value}" for name, value in self.counts().items()]
        return metrics_reply(lines, self.statuses)

    def counts(self) -> dict[str, float]:
        """Counts of the engine, by name."""
        engine, draft = self.engine, self.engine.draft
        drafts: dict[str, float] = {}
        if draft is not None:
            drafts["drafted_tokens_total"] = draft.drafted
            drafts["accepted_tokens_total"] = draft.accepted
            drafts["accepted_share"] = draft.accepted / max(draft.drafted, 1)
        return {
            "prompt_tokens_total": engine.counts["prompt_tokens"],
            "generated_tokens_total": engine.counts["tokens"],
            "cancelled_answers_total": engine.counts["cancelled"],
            "first_token_seconds_sum": engine.first_seconds,
            "first_token_seconds_count": engine.counts["first_tokens"],
            "live_answers": engine.live,
            "waiting_requests": engine.waiting,
            "slots": engine.slots,
            **drafts,
        }

    async def models(self, call: Call) -> Response:
        return JSONResponse({"object": "list", "data": [self.about()]})

    async def model(self, call: Call) -> Response:
        if (name := call.path_params["name"]) != self.name:
            raise Refusal(404, f"there is no model {name[:100]!r}; the model is {self.name!r}")
        return JSONResponse(self.about())

    async def chat(self, call: Call) -> Response:
        return await self._answer(call, chat=True)

    async def complete(self, call: Call) -> Response:
        return await self._answer(call, chat=False)

    async def load_weights(self, call: Call) -> Response:
        """Read the weights of a folder, when the answers of now are written."""
        assert self.weights is not None
        folder = (await self.body_of(call)).get("folder")
        if not isinstance(folder, str):
            raise Refusal(400, "folder: a path", param="folder")
        try:
            path = self.weights.path_of(folder)
            await run_in_threadpool(self.engine.between, partial(self.weights.read, path))
        except EngineClosed:
            raise Refusal(503, "the server is closing") from None
        except ValueError as error:
            raise Refusal(400, str(error), param="folder") from None
        return JSONResponse({"folder": str(path)})

    def about(self) -> dict[str, Any]:
        """The model as /v1/models shows it."""
        about = {"chat": self.talks, "max_tokens": self.engine.length}
        head = {"id": self.name, "object": "model", "created": self.created}
        return {**head, "owned_by": "forge", "forge": about}

    async def _answer(self, call: Call, *, chat: bool) -> Response:
        try:
            body = await self.body_of(call)
        except ClientDisconnect:
            return Response(status_code=NOBODY)
        return await self.answer_body(call, body, chat=chat)

    async def body_of(self, call: Call) -> dict[str, Any]:
        """The JSON object that a call brings. Raises Refusal, or ClientDisconnect."""
        return parse_body(await _body(call, self.limits.body))

    async def answer_body(self, call: Call, body: dict[str, Any], *, chat: bool) -> Response:
        """The answer to a body that was read of a call."""
        asked = asked_of(body, chat=chat, model=self.name, limits=self.limits)
        pieces: asyncio.Queue[Piece] = asyncio.Queue()
        prompt = await run_in_threadpool(self._encoded, asked)
        request = self._request(asked, prompt, _put(pieces), chat=chat)
        if asked.schema is not None:
            request.guide = await run_in_threadpool(self._guide, asked.schema, chat=chat)
        try:
            self.engine.submit(request)
        except Full:
            raise Refusal(429, "all slots are taken and the queue is full; try again") from None
        except EngineClosed:
            raise Refusal(503, "the server is closing") from None
        writer = Writer(request, self.tokenizer, self.name, chat=chat)
        if asked.stream:
            return _Stream(request, _events(writer, _received(request, pieces), usage=asked.usage))
        return await _whole(call, writer, request, pieces)

    def _encoded(self, asked: Asked) -> tuple[int, ...]:
        """The prompt's token ids. Raises Refusal where there is no room for an answer."""
        prompt, name = asked.prompt, "messages" if _is_chat(asked.prompt) else "prompt"
        if isinstance(prompt, list) and not _is_chat(prompt):
            ids = prompt
            if not all(0 <= token < self.tokenizer.vocab_size for token in ids):
                message = f"prompt: ids are from 0 to {self.tokenizer.vocab_size - 1}"
                raise Refusal(400, message, param=name)
        else:
            try:
                ids = encode_prompt(self.tokenizer, prompt)
            except ValueError as error:
                raise Refusal(400, f"{name}: {error}", param=name) from None
        if len(ids) >= self.limits.tokens:
            room = f"{self.limits.tokens} tokens with its answer at most"
            raise Refusal(400, f"{name}: {len(ids)} tokens, and {room}", param=name)
        return tuple(ids)

    def _guide(self, schema: dict[str, Any], *, chat: bool) -> Callable[[], JSONGuide]:
        """What holds each answer to a schema. Raises Refusal."""
        try:
            return self.guides[chat].maker(schema)
        except ValueError as error:
            raise Refusal(400, f"{FORMAT}: {error}", param=FORMAT) from None

    def _request(
        self, asked: Asked, prompt: tuple[int, ...], put: Callable[[Piece], None], *, chat: bool
    ) -> Request:
        room = self.limits.tokens - len(prompt)
        return Request(
            prompt=prompt,
            put=put,
            most=min(room, asked.most or room),
            sampling=asked.sampling,
            ends=self.ends[chat] | asked.ends,
            stop=asked.stop,
            n=asked.n,
            top=asked.top,
            ids=asked.ids,
        )


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


class _ClosingResponse(JSONResponse):
    """Answers a body that was not read to its end, and closes the connection, after a moment in
    which the client can read the answer; else an endless body would be read for ever.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        head = {"type": "http.response.start", "status": self.status_code}
        await send({**head, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGERING):
                while (await receive()).get("more_body"):
                    pass
        await send({"type": "http.response.body", "body": b""})


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], dict)


def _put(pieces: asyncio.Queue[Piece]) -> Callable[[Piece], None]:
    """Hand pieces from the engine's thread to the loop of this call."""
    loop = asyncio.get_running_loop()

    def put(piece: Piece) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

    return put


def metrics_reply(lines: list[str], statuses: Counter[int]) -> Response:
    """Counts with those of status codes, in the text format of Prometheus."""
    for status, count in sorted(statuses.items()):
        lines.append(f'forge_responses_total{{status="{status}"}} {count}')
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


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
    if error.status in UNREAD:
        return _ClosingResponse(body, error.status, {"connection": "close"})
    return JSONResponse(body, error.status, headers)


async def _http_error(call: Call, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    paths = "/v1/chat/completions, /v1/completions, /v1/models, /health, /metrics, /"
    detail = f"there is no such path; paths are {paths}"
    message = detail if error.status_code == 404 else str(error.detail)
    return JSONResponse(error_body(error.status_code, message), error.status_code, error.headers)


async def _failure(call: Call, error: Exception) -> Response:
    return JSONResponse(error_body(500, f"{type(error).__name__}"), 500)


HANDLERS: Any = {HTTPException: _http_error, Refusal: _refusal, Exception: _failure}
"""What is answered where a call fails."""
