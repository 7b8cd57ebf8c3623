"""A model of lm-eval on the scoring engine: log-likelihoods, rolling windows, texts and chats.

The semantics are those of lm-eval's own model of transformers, with one difference: a document
scored in rolling windows begins with one begin token, not with two, for tokenizers that add it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from forge.config.tokenizers.chat_template import BadTemplate, ChatTemplate
from forge.data.tokenizers import render
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.evaluation.cache import Cache
from forge.evaluation.encoding import shortened, windows
from forge.evaluation.engine import Done, Engine
from forge.evaluation.generation import ROWS
from forge.evaluation.parts import Agree, continued_in_parts
from forge.evaluation.requests import Request
from forge.models.sampling import DrawOptions, continue_rows
from forge.models.token_distribution import Sampling
from forge.tasks.item import Score

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
else:
    try:
        from lm_eval.api.model import TemplateLM
    except ImportError as error:
        INSTALL = "pip install 'forge-lm[eval]'"
        raise ImportError(f"lm-eval is not installed: {INSTALL}") from error

SAMPLED = ("top_k", "top_p", "min_p", "repetition_penalty")
"""Generation options beside the temperature that forge's sampler has too."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a generation request. stop: texts that end it."""

    stop: tuple[str, ...]
    max_tokens: int
    sampling: Sampling


class EngineLM(TemplateLM):
    """The model that lm-eval asks, called alike by all ranks of a layout.

    The engine spreads requests over the ranks, so lm-eval sees one process. answers: known scores,
    such as those of a killed evaluation. watch: called between rounds, and free to raise. seed: of
    sampled texts.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        max_gen_toks: int = 256,
        answers: Cache | None = None,
        watch: Callable[[], None] = lambda: None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.engine, self.text_tokenizer = engine, tokenizer
        self._max_gen_toks, self.seed = max_gen_toks, seed
        self.answers = Cache(None) if answers is None else answers
        self.watch = watch

    @property
    def device(self) -> torch.device:
        return self.engine.device

    @property
    def eot_token_id(self) -> int:
        return self.text_tokenizer.eos_id

    @property
    def prefix_token_id(self) -> int:
        begin = self.text_tokenizer.bos_id
        return self.eot_token_id if begin is None else begin

    @property
    def max_length(self) -> int:
        return self.engine.longest

    @property
    def max_gen_toks(self) -> int:
        return self._max_gen_toks

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Encode a text, with special tokens read from their spelling. The begin token stands
        first, once, where the tokenizer adds it and `add_special_tokens` is not False.
        """
        ((ids, _),) = self.text_tokenizer.encode_marked([string])
        begin = self.text_tokenizer.begin_id
        if add_special_tokens is False or begin is None or ids[:1] == [begin]:
            return list(ids)
        return [begin, *ids]

    def tok_decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids."""
        special = self._special_ids if skip_special_tokens else frozenset()
        return self.text_tokenizer.decode([token for token in tokens if token not in special])

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        encoded = self.text_tokenizer.encode_marked(self.text_tokenizer.special_tokens)
        return frozenset(token for ids, _ in encoded for token in ids)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """The sum of log-probabilities of each continuation, and whether greedy decoding says it.

        A context too long for the model loses its beginning, a continuation nothing.
        """
        made = []
        for texts, context, continuation in requests:
            if not continuation:
                raise ValueError(f"lm-eval asks for a continuation without tokens: {texts}")
            request = Request(tuple(context), tuple(continuation))
            made.append(shortened(request, self.max_length))
        answers = [(score.logprob, score.greedy) for score in self._scores(made)]
        for (texts, _, _), answer in zip(requests, answers, strict=True):
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, answer)
        return answers

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-likelihood of each text, window after window; each token is scored once."""
        made: list[Request] = []
        counts = []
        for request in requests:
            text = request.args[0]
            ids = self.tok_encode(text, add_special_tokens=False)
            parts = windows(ids, self.prefix_token_id, self.max_length)
            made += parts
            counts.append(len(parts))
        scores = iter(self._scores(made))
        totals = [sum(next(scores).logprob for _ in range(count)) for count in counts]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _scores(self, requests: Sequence[Request]) -> list[Score]:
        """Scores by the engine, except where the answer is known."""
        by_key = {request.key: request for request in requests}
        missing = [key for key in by_key if key not in self.answers.known]

        def add(done: Done) -> None:
            self.answers.add((missing[index], list(score)) for index, score in done)
            self.watch()

        if missing:
            self.engine.score([by_key[key] for key in missing], add)
        return [Score(*self.answers.known[request.key]) for request in requests]

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text after each context, cut before its first stop string.

        A context loses its beginning where the model has no room for it and the new tokens.
        """
        by_options: dict[Options, list[tuple[int, tuple[int, ...], str]]] = {}
        repeated: Counter[tuple[Options, tuple[int, ...]]] = Counter()
        for index, request in enumerate(requests):
            arguments: Any = request.args
            context, given = arguments
            options = self._options(given)
            room = self.max_length - options.max_tokens
            ids = tuple(self.tok_encode(context)[-room:]) or (self.prefix_token_id,)
            sample = repeated[options, ids]
            repeated[options, ids] += 1
            number = hashlib.sha256(repr((ids, sample)).encode()).hexdigest()[:32]
            by_options.setdefault(options, []).append((index, ids, number))
        texts = [""] * len(requests)
        at_once = ROWS * self.engine.ranks.batch[1]
        for options, rows in by_options.items():
            rows.sort(key=lambda row: -len(row[1]))
            write = partial(self._texts, options)
            for start in range(0, len(rows), at_once):
                some = rows[start : start + at_once]
                engine = self.engine
                made = continued_in_parts(engine.model, self.device, engine.ranks, some, write)
                for (index, _, _), text in zip(some, made, strict=True):
                    texts[index] = text
                    self.cache_hook.add_partial("generate_until", requests[index].args, text)
                self.watch()
        return texts

    def _options(self, given: dict[str, Any]) -> Options:
        """Options of a request. Raises ValueError for options that forge's sampler lacks."""
        from lm_eval.models.utils import normalize_gen_kwargs

        options: dict[str, Any] = dict(normalize_gen_kwargs(given, self.max_gen_toks))
        stop, max_tokens = options.pop("until"), options.pop("max_gen_toks")
        temperature = float(options.pop("temperature", 0.0))
        temperature = temperature if options.pop("do_sample") else 0.0
        sampling = {name: options.pop(name) for name in SAMPLED if name in options}
        options = {name: value for name, value in options.items() if (name, value) not in NEUTRAL}
        if options:
            names = ", ".join(f"{name}={value}" for name, value in options.items())
            raise ValueError(f"generation_kwargs: forge's sampler has no {names}; leave it out")
        if max_tokens >= self.max_length:
            limit = f"max_gen_toks={max_tokens} leaves no room in a model of {self.max_length}"
            raise ValueError(f"{limit} tokens; give generation_kwargs a smaller max_gen_toks")
        return Options(
            stop=tuple(text for text in stop if text),
            max_tokens=max_tokens,
            sampling=Sampling(temperature=temperature, seed=self.seed, **sampling),
        )

    def _texts(
        self, options: Options, rows: Sequence[tuple[int, tuple[int, ...], str]], agree: Agree
    ) -> list[str]:
        """Continue contexts with equal options."""
        if not rows:
            return []
        tokenizer, stop = self.text_tokenizer, options.stop

        # A stop string has no more tokens than bytes; the first tokens of a text may lose a space.
        tail = max((len(text.encode()) for text in stop), default=0) + 4

        def ended(row: int, drawn: list[int]) -> bool:
            texts = (tokenizer.decode(ids) for ids in (drawn[-tail:], drawn))
            return all(any(each in text for each in stop) for text in texts)

        how = DrawOptions(
            sampling=options.sampling,
            eos_id=tokenizer.eos_id,
            ends=frozenset({tokenizer.end_id, *render.stated_ends(tokenizer)}),
            n_ids=tokenizer.vocab_size,
            ended=ended if stop else None,
            agree=agree,
        )
        contexts, numbers = [ids for _, ids, _ in rows], [number for _, _, number in rows]
        model, device = self.engine.model, self.device
        drawn = continue_rows(model, contexts, options.max_tokens, how, device, numbers).tokens
        texts = [self.tok_decode(tokens) for tokens in drawn]
        for each in stop:
            texts = [text.split(each)[0] for text in texts]
        return texts

    @cached_property
    def _template(self) -> ChatTemplate:
        return render.template_of(self.text_tokenizer)

    @property
    def tokenizer_name(self) -> str:
        """A name for lm-eval's caches of requests: hash of tokenizer and chat template."""
        content = self.text_tokenizer.fingerprint + self._template.source
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The Jinja source of the tokenizer's template; None where none is asked for."""
        return self._template.source if chat_template else None

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The text of messages up to the assistant's answer; without the generation prompt, up to
        the end of the last message's words. A template without a system role loses that message.
        """
        template = self._template
        plain = [message for message in chat_history if message["role"] != "system"]
        for messages in (chat_history, plain):
            try:
                if add_generation_prompt:
                    return template.prompt(messages)
                text, last = template.text(messages), messages[-1]["content"].strip()
                return text[: text.rindex(last) + len(last)]
            except BadTemplate as error:
                if messages is plain:
                    raise ValueError(f"the chat template does not take it: {error}") from error
        raise AssertionError


NEUTRAL = (("num_beams", 1), ("use_cache", True))
"""Options of transformers that change nothing."""
