"""Completions of token ids by an OpenAI-compatible server, over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from forge.config.rollouts.openai import FOLDER, OpenAIRollout

HERE = ("127.0.0.1", "localhost", "::1")
BUSY = (408, 429, 500, 502, 503, 504)
LONGEST_WAIT = 30.0
NO_KEYS = "it returns no {name}; vLLM returns them, and forge.serve"


class ServerFailed(ValueError):
    """A server that cannot be reached, or whose answers are of no use."""


class Client:
    """Asks the server of a section. model: name of the model at the server."""

    def __init__(self, section: OpenAIRollout) -> None:
        """Raises ServerFailed where the server names no model to take."""
        self.section, self.url = section, section.url.rstrip("/")
        local = urlsplit(self.url).hostname in HERE
        proxies = [urllib.request.ProxyHandler({})] if local else []
        self._opener = urllib.request.build_opener(*proxies)
        self.model = section.model or self._only_model()

    def complete(self, ids: list[int], **options: Any) -> tuple[list[int], list[float], str]:
        """Token ids of a completion, their log-probabilities, and the reason of the end.

        options: fields of the request. Raises ServerFailed.
        """
        body = {"model": self.model, "prompt": ids, "n": 1, "logprobs": 0}
        body |= {"return_token_ids": True, "skip_special_tokens": False, **options}
        address = f"{self.url}/completions"
        answer = self._asked(address, body)
        try:
            choice = answer["choices"][0]
            reason = str(choice["finish_reason"])
            tokens: Any = choice.get("token_ids")
            logprobs = choice.get("logprobs")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise self._failed(address, f"its answer has no choices: {_in_short(answer)}") from None
        if not _are(tokens, int):
            raise self._failed(address, NO_KEYS.format(name="token_ids"))
        values: Any = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        if not _are(values, float):
            raise self._failed(address, NO_KEYS.format(name="logprobs.token_logprobs"))
        if len(values) != len(tokens):
            counts = f"{len(tokens)} token ids and {len(values)} log-probabilities"
            raise self._failed(address, f"it returns {counts}")
        if choice.get("prompt_token_ids", ids) != ids:
            raise self._failed(address, "it read other tokens than it was sent")
        return tokens, [float(value) for value in values], reason

    def reload(self, folder: str) -> None:
        """Tell the server of a folder with new weights. Raises ServerFailed."""
        body = _filled(self.section.reload_body or {"folder": FOLDER}, folder)
        for address in self.section.reload:
            self._asked(address, body, key="rollout.reload")

    def _only_model(self) -> str:
        address = f"{self.url}/models"
        answer = self._asked(address, None)
        try:
            names = [str(entry["id"]) for entry in answer["data"]]
        except (KeyError, TypeError):
            raise self._failed(address, f"it lists no models: {_in_short(answer)}") from None
        if len(names) == 1:
            return names[0]
        listed = f"the server has {', '.join(names) or 'no model'}"
        raise ServerFailed(f"rollout.model: {listed}; give the name of the trained one")

    def _asked(self, address: str, body: Any, *, key: str = "rollout.url") -> Any:
        """The JSON of an answer; a server that is busy or away is asked again."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        if token := os.environ.get(self.section.key_variable):
            headers["authorization"] = f"Bearer {token}"
        end, tries = time.monotonic() + self.section.timeout, 0
        while True:
            request = urllib.request.Request(address, data, headers)
            try:
                with self._opener.open(request, timeout=self.section.timeout) as answer:
                    text = answer.read()
                return json.loads(text) if text.strip() else None
            except urllib.error.HTTPError as error:
                fault = f"status {error.code}: {_message_of(error)}"
                if error.code not in BUSY:
                    raise self._failed(address, fault, key) from None
                # A full queue is no failure: the request waits for its turn.
                tries += error.code != 429
            except ValueError as error:
                raise self._failed(address, f"its answer is no JSON: {error}", key) from None
            except (OSError, http.client.HTTPException) as error:
                fault, tries = _reason_of(error, self.section.timeout), tries + 1
            if tries > self.section.retries or time.monotonic() > end:
                raise self._failed(address, fault, key)
            time.sleep(min(2.0 ** max(tries - 1, 0) / 2, LONGEST_WAIT))

    def _failed(self, address: str, fault: str, key: str = "rollout.url") -> ServerFailed:
        hint = "Start the server, or give its address; the run then resumes from its checkpoint"
        return ServerFailed(f"{key}: the server at {address} is of no use: {fault}. {hint}")


def _filled(value: Any, folder: str) -> Any:
    """A value of JSON with the path in place of {folder}, at any depth."""
    if isinstance(value, Mapping):
        return {name: _filled(inner, folder) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(inner, folder) for inner in value]
    return value.replace(FOLDER, folder) if isinstance(value, str) else value


def _in_short(answer: Any) -> str:
    return json.dumps(answer)[:200]


def _are(values: Any, kind: type) -> bool:
    """Whether values are a list of numbers of a kind, one at least."""
    right = (int, float) if kind is float else kind
    return (
        isinstance(values, list)
        and bool(values)
        and all(isinstance(each, right) and not isinstance(each, bool) for each in values)
    )


def _message_of(error: urllib.error.HTTPError) -> str:
    """The message in the body of an error, in OpenAI's form or as it is."""
    text = error.read(4096).decode(errors="replace")
    try:
        content = json.loads(text)
        inner = content.get("error", content)
        return str(inner["message"] if isinstance(inner, dict) else inner)[:300]
    except (ValueError, AttributeError, KeyError):
        return text.strip()[:300] or str(error.reason)


def _reason_of(error: Exception, timeout: float) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"no answer within rollout.timeout={timeout:g} seconds"
    return getattr(reason, "strerror", None) or str(reason) or type(error).__name__
