"""OpenAI's objects: whole answers, parts of a stream, and errors."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from forge.data.tokenizers.tokenizer import Tokenizer
from forge.serve.engine import Piece, Request, Token

KINDS = {400: "invalid_request_error", 403: "forbidden", 404: "not_found_error"}
KINDS |= {413: "request_too_large", 429: "rate_limit_error", 503: "service_unavailable"}
DONE = b"data: [DONE]\n\n"


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """The JSON of an error."""
    kind = KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


def event(value: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(value)}\n\n".encode()


class Writer:
    """Writes the answers of a request as OpenAI's objects: of a chat, or of a text."""

    def __init__(self, request: Request, tokenizer: Tokenizer, model: str, *, chat: bool) -> None:
        self.request, self.tokenizer, self.chat = request, tokenizer, chat
        prefix = "chatcmpl" if chat else "cmpl"
        self.head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time())}
        self.head["model"] = model

    def whole(self, pieces: Iterable[Piece]) -> dict[str, Any]:
        """The answer that is sent at once."""
        texts = [""] * self.request.n
        tokens: list[list[Token]] = [[] for _ in texts]
        finishes: list[str | None] = [None] * self.request.n
        for piece in pieces:
            texts[piece.answer] += piece.text
            tokens[piece.answer] += piece.tokens
            finishes[piece.answer] = piece.finish or finishes[piece.answer]
        choices = []
        for number, text in enumerate(texts):
            if self.chat:
                content: dict[str, Any] = {
                    "message": {"role": "assistant", "content": text, "refusal": None}
                }
            else:
                content = {"text": text}
            choices.append(self._choice(number, content, tokens[number], finishes[number]))
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self.head, "object": kind, "choices": choices, "usage": self.usage()}

    def first(self, number: int) -> dict[str, Any]:
        """The part of a stream that begins an answer of a chat."""
        content = {"delta": {"role": "assistant", "content": ""}}
        return self._part([self._choice(number, content, [], None)])

    def part(self, piece: Piece) -> dict[str, Any]:
        """A part of a stream."""
        if self.chat:
            delta = {"content": piece.text} if piece.text or not piece.finish else {}
            content: dict[str, Any] = {"delta": delta}
        else:
            content = {"text": piece.text}
        return self._part([self._choice(piece.answer, content, piece.tokens, piece.finish)])

    def last(self) -> dict[str, Any]:
        """The part of a stream with the numbers of tokens."""
        return self._part([]) | {"usage": self.usage()}

    def usage(self) -> dict[str, int]:
        """Numbers of tokens, the ending tokens too."""
        read = len(self.request.prompt)
        written = sum(len(answer.row.tokens) for answer in self.request.answers)
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }

    def _part(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self.head, "object": kind, "choices": choices}

    def _choice(
        self, number: int, content: dict[str, Any], tokens: Sequence[Token], finish: str | None
    ) -> dict[str, Any]:
        logprobs: Any = None
        if self.request.top is not None and (tokens or not self.chat):
            logprobs = self._chat_logprobs(tokens) if self.chat else self._logprobs(tokens)
        beside: dict[str, Any] = {"logprobs": logprobs, "finish_reason": finish}
        if self.request.ids:
            beside["token_ids"] = [token.id for token in tokens]
            beside["prompt_token_ids"] = list(self.request.prompt)
        return {"index": number, **content, **beside}

    def _spelled(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.tokenizer.decode([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    def _chat_logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        content = []
        for token in tokens:
            top = [self._spelled(id_, logprob) for id_, logprob in token.candidates]
            content.append(self._spelled(token.id, token.logprob) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        texts = [self.tokenizer.decode([token.id]) for token in tokens]
        top = [
            {self.tokenizer.decode([id_]): logprob for id_, logprob in token.candidates}
            for token in tokens
        ]
        offsets, place = [], 0
        for text in texts:
            offsets.append(place)
            place += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": top if self.request.top else None,
            "text_offset": offsets,
        }
