"""The engine: a thread in which all live requests draw their tokens together."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from forge.data.tokenizers.tokenizer import Tokenizer
from forge.models.batching.drafted import Draft, Drafted, why_no_drafts
from forge.models.batching.row import Row
from forge.models.batching.slots import Apart, Rows, Slots, refillable
from forge.models.reading_mode import evaluating
from forge.models.sampling import DrawOptions
from forge.models.token_distribution import Sampling
from forge.serve.json_guide import JSONGuide
from forge.serve.lockstep import Lead
from forge.serve.spelling import Speller

CHUNK = 256  # tokens of a joining prompt that are read between two steps
PULSE = 2.0  # seconds between two signs of life to other ranks
ON_GPU = 4  # tokens that a GPU draws before it is waited for


class Full(Exception):
    """As many requests wait as may."""


class EngineClosed(Exception):
    """The engine takes no more requests."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """A drawn token, with its log-probability and the likeliest candidates, if asked for."""

    id: int
    logprob: float
    candidates: list[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """New text of one of the answers, its tokens, and why it ended; the last has a `finish`.

    finish: `stop` or `length`. error: what went wrong, in the last of all pieces.
    """

    answer: int = 0
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    finish: str | None = None
    error: str = ""


@dataclass(kw_only=True, eq=False)
class Request:
    """A prompt that is to be answered `n` times.

    put: takes each Piece, in the engine's thread. most: tokens of an answer at most. ends: ids that
    end an answer. top: candidates to record; None = no log-probabilities. ids: whether all tokens
    are reported, the ending token too. guide: makes what holds each answer to a schema.
    """

    prompt: tuple[int, ...]
    put: Callable[[Piece], None]
    most: int
    sampling: Sampling
    ends: frozenset[int]
    stop: tuple[str, ...] = ()
    n: int = 1
    top: int | None = None
    ids: bool = False
    guide: Callable[[], JSONGuide] | None = None
    came: float = field(default_factory=time.perf_counter)
    cancelled: bool = False
    answers: list[Answer] = field(default_factory=list)

    def cancel(self) -> None:
        """Give the slots back at the next step; nobody waits for an answer."""
        self.cancelled = True


class Answer:
    """One of the answers of a request: its row, and its text."""

    def __init__(self, request: Request, number: int, tokenizer: Tokenizer) -> None:
        self.request, self.number = request, number
        self.speller = Speller(tokenizer, request.ends, request.stop)
        self.reported = 0
        self.guide = request.guide() if request.guide else None
        # As forge.generate numbers the samples of its first prompt.
        self.row = Row(
            prompt=request.prompt,
            number=f"0 {number}" if number else 0,
            most=request.most,
            sampling=request.sampling,
            ends=request.ends,
            ended=self._is_over,
            top=request.top or 0,
            guide=self.guide,
        )

    def _is_over(self, tokens: list[int]) -> bool:
        if self.guide is not None and self.guide.done:
            self.speller.stopped = True
        return self.speller.add(tokens)

    def tell(self) -> None:
        """Hand on what is new of the answer."""
        row, finish = self.row, None
        if self.guide is not None and self.guide.fault:
            self.request.put(Piece(answer=self.number, error=f"the schema: {self.guide.fault}"))
            return
        if row.over:
            finish = self.speller.finish(row.tokens)
        tokens = []
        if self.request.top is not None or self.request.ids:
            for place in range(self.reported, len(row.tokens)):
                candidates = row.candidates[place] if row.top else []
                token, logprob = row.tokens[place], row.logprobs[place]
                if self.request.ids or token not in self.request.ends:
                    tokens.append(Token(id=token, logprob=logprob, candidates=candidates))
        self.reported = len(row.tokens)
        text = self.speller.new(over=row.over)
        if text or tokens or finish:
            self.request.put(Piece(answer=self.number, text=text, tokens=tokens, finish=finish))


class Engine:
    """Answers requests: `slots` answers at once, and `waiting` requests in a queue after them.

    length: tokens of a prompt with its answer, at most. processed_logprobs: log-probabilities are
    reported after temperature and cuts, not before. Start it with `start`, end it with `close`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        device: torch.device,
        *,
        slots: int = 16,
        waiting: int = 64,
        length: int | None = None,
        processed_logprobs: bool = False,
        lead: Lead | None = None,
        agree: Callable[[Tensor], Tensor] = lambda drawn: drawn,
        draft: Draft | None = None,
    ) -> None:
        """draft: drafts tokens, of the same tokenizer; texts stay as without. lead: of other ranks,
        which repeat all steps; an error of the model then ends the engine, since ranks may be at
        different places. agree: as in `DrawOptions`. Raises ValueError for models that have
        no drafts.
        """
        self.model, self.tokenizer, self.device = model, tokenizer, device
        self.slots, self.room, self.processed = slots, waiting, processed_logprobs
        self.length = min(int(model.max_seq_len), length or int(model.max_seq_len))
        self.lead, self.agree, self.draft = lead, agree, draft
        for each in (model, draft.model) if draft is not None else ():
            if reason := why_no_drafts(each):
                raise ValueError(f"drafts: {reason}")
            self.length = min(self.length, int(each.max_seq_len))
        self.error: Exception | None = None  # that ended the engine
        self.when_over: Callable[[], None] = lambda: None
        self.every = 1 if device.type == "cpu" else ON_GPU
        self.counts: Counter[str] = Counter()
        self.first_seconds = 0.0  # until the first token, of all requests
        self._queue: deque[Request] = deque()
        self._changed = threading.Condition()
        self._changing = threading.Lock()  # one change of weights at a time
        self._closed = False
        self._change: Callable[[], None] | None = None
        self._rows = self._empty()
        self._answers: dict[Row, Answer] = {}
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> Engine:
        self._thread.start()
        return self

    def close(self) -> None:
        """End all requests with an error, and the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, request: Request) -> None:
        """Put a request in the queue. Raises Full, or Closed."""
        request.answers = [Answer(request, n, self.tokenizer) for n in range(request.n)]
        with self._changed:
            if self._closed:
                raise EngineClosed
            self._queue = deque(each for each in self._queue if not each.cancelled)
            if len(self._queue) >= self.room + max(self.slots - len(self._answers), 0):
                raise Full
            self._queue.append(request)
            self._changed.notify_all()

    def between(self, change: Callable[[], object]) -> None:
        """Call a function when no answer is written, in the engine's thread; requests that wait
        come after it. Raises Closed, or what the function raises.
        """
        done: Future[object] = Future()

        def call() -> None:
            try:
                done.set_result(change())
            except BaseException as error:
                done.set_exception(error)

        with self._changing, self._changed:
            if self._closed:
                raise EngineClosed
            self._change = call
            self._changed.notify_all()
            while self._change is call and not self._closed:
                self._changed.wait(0.2)
        if not done.done():
            raise EngineClosed
        done.result()

    @property
    def how(self) -> DrawOptions:
        """Options of all draws, on all ranks."""
        n_ids = self.tokenizer.vocab_size
        return DrawOptions(n_ids=n_ids, as_drawn=self.processed, agree=self.agree)

    @property
    def live(self) -> int:
        """Answers that are written now."""
        return len(self._rows.rows)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return sum(not request.cancelled for request in list(self._queue))

    @property
    def usable(self) -> bool:
        return self._thread.is_alive() and not self._closed

    def _empty(self) -> Rows:
        how = self.how
        if self.lead is not None:
            return self.lead.rows(self.model, self.slots, self.length, how, self.device)
        if self.draft is not None:
            size, length = self.slots, self.length
            return Drafted(self.draft, self.model, size, length, length, how, self.device)
        if refillable(self.model):
            return Slots(self.model, self.slots, self.length, self.length, how, self.device)
        return Apart(self.model, self.slots, self.length, how, self.device)

    def _run(self) -> None:
        try:
            with evaluating(self.model):
                while self._wait():
                    try:
                        self._step()
                    except Exception as error:  # of the model: requests fail, the engine continues
                        self._fail(f"{type(error).__name__}: {error}")
                        if self.lead is not None and not isinstance(error, FloatingPointError):
                            raise
                        self._rows = self._empty()
            if self.lead is not None:
                self.lead.end()
        except Exception as error:
            self.error = error
        with self._changed:
            self._closed = True
        self._fail("the server is closing")
        self.when_over()

    def _wait(self) -> bool:
        """Wait for a request; False when closed."""
        with self._changed:
            while not (self._closed or self._queue or self._rows.rows or self._change):
                waited = self._changed.wait(PULSE if self.lead is not None else None)
                if not waited and self.lead is not None:
                    self.lead.idle()  # other ranks would take a long silence for a loss
            return not self._closed

    def _fail(self, why: str) -> None:
        with self._changed:
            requests = {answer.request for answer in self._answers.values()}
            if self._closed:
                requests |= set(self._queue)
                self._queue.clear()
            self._answers = {}
        for request in requests:
            request.put(Piece(error=why))

    def _step(self) -> None:
        """Let requests leave and join, and draw the next token of each answer."""
        for row, answer in list(self._answers.items()):
            if answer.request.cancelled:
                self._leave(row)
        if self._change is not None and not self._rows.rows:
            self._change()
            with self._changed:
                self._change = None
                self._changed.notify_all()
        while (request := self._next()) is not None:
            self._join(request)
        self._draw_next()

    def _next(self) -> Request | None:
        """The first request of the queue, if there are slots for all of its answers."""
        with self._changed:
            while self._queue and self._queue[0].cancelled:
                self._queue.popleft()
            if self._change is None and self._queue and self._queue[0].n <= self._rows.free:
                return self._queue.popleft()
            return None

    def _join(self, request: Request) -> None:
        """Read a prompt, while others continue, and draw the first token of each answer."""
        rows = [answer.row for answer in request.answers]
        for row, answer in zip(rows, request.answers, strict=True):
            self._answers[row] = answer
        for _ in self._rows.reading([request.prompt], CHUNK):
            self._draw_next()
            if request.cancelled or self._closed:
                break
        else:
            self._rows.join(rows)
            self.counts["prompt_tokens"] += len(request.prompt)
            self.counts["first_tokens"] += 1
            self.first_seconds += time.perf_counter() - request.came
            self._tell(rows)
        self._rows.read.clear()

    def _draw_next(self) -> None:
        if self._rows.rows:
            self._tell(self._rows.draw_next(self.every))

    def _tell(self, rows: list[Row]) -> None:
        for row in rows:
            answer = self._answers[row]
            self.counts["tokens"] += len(row.tokens) - answer.reported
            answer.tell()
            if row.over:
                del self._answers[row]

    def _leave(self, row: Row) -> None:
        if row in self._rows.rows:
            self._rows.remove(row)
        self.counts["cancelled"] += 1
        del self._answers[row]
