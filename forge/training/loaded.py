"""A trained model ready for use: generation, evaluation and logits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from forge.build import build
from forge.compose.composition import compose
from forge.compose.task_words import words as task_words
from forge.compose.trust import for_run
from forge.config.data.reading import held_out_section
from forge.config.objectives.preference import EXAMPLES
from forge.config.places import is_remote
from forge.config.problems import ConfigError
from forge.data.preparing.cached import prepare_tokens
from forge.data.tokens.store import MappedStore, TokenStore
from forge.evaluation.cache import Cache
from forge.evaluation.engine import Engine
from forge.evaluation.run import Runner, TaskResult
from forge.evaluation.tasks import flat_metrics, tasks_ready
from forge.models.reading_mode import evaluating
from forge.objectives.objective import Objective
from forge.parallel.ranks import Ranks
from forge.resolve.rules.entries import entry_faults
from forge.rundir.checkpoints import (
    BEST,
    META,
    CheckpointError,
    Saved,
    list_checkpoints,
    saved_folder,
)
from forge.rundir.directory import Place, path_of, short
from forge.tasks.declared import faults, is_text
from forge.training.callbacks.evaluation import evaluate_sets, most_sequences
from forge.training.checkpoints.restore import Trained, load_run
from forge.training.data import prepared_text
from forge.training.models import build_objective
from forge.training.references import add_references, examples_evaluated
from forge.training.writing import ROWS, Prompt, Writer, Written, encode_prompt

Step = int | Literal["last", "best"]
Text = str | os.PathLike[str] | Mapping[str, Any] | Sequence[str]
Prompts = TypeVar("Prompts", str, list[str])
LAST = "last"


def load(
    run: Place,
    step: Step = LAST,
    *,
    device: str | None = None,
    trust: Sequence[str] = (),
    weights: Literal["trained", "ema"] = "trained",
) -> Loaded:
    """Load the model of a run, or of one checkpoint of the run, ready for use.

    step: the newest checkpoint, the best by the run's eval.metric, or the checkpoint of a step.
    device: cpu, cuda, cuda:N or mps; None = as in the run, or the CPU without a GPU, on CPU and mps
    in fp32. trust: prefixes of modules outside of forge for building the model; by default the
    prefixes of the run's project, where trusted. An address such as s3://bucket/runs/mine means a
    copy in the cache. weights: trained, or their moving mean
    (train.ema_decay). The process takes over the run's threads and
    determinism. Raises ValueError for a missing checkpoint.
    """
    if isinstance(run, str) and is_remote(run) and step != LAST:
        run, step = f"{run}/{BEST if step == BEST else f'checkpoints/step_{step}'}", LAST
    path = _checkpoint(path_of(run), step)
    options = {"device": chosen_device(device), "weights": weights}
    trained = load_run(path, trust=for_run(path, trust), **options)
    return Loaded(**vars(trained))


@dataclass(frozen=True, kw_only=True, eq=False)
class Loaded(Trained):
    """A trained model in eval mode on its device.

    With tokenizer, resolved config of the run, and step and path of the checkpoint.
    """

    def __repr__(self) -> str:
        kind, location = type(self.model).__name__, short(self.path)
        return f"{kind} of step {self.step} on {self.device}, from {location}"

    def generate(
        self,
        prompts: Prompts,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.8,
        top_k: int = 50,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        batch_size: int = ROWS,
    ) -> Prompts:
        """Continue a prompt, or each of a list, and return the texts without the prompts.

        With equal options forge.generate writes the same. An empty prompt begins a document.
        """
        options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        options |= {"min_p": min_p, "repetition_penalty": repetition_penalty, "stop": stop}
        options |= {"seed": seed, "batch_size": batch_size, "max_new_tokens": max_new_tokens}
        if isinstance(prompts, str):
            return self.continuations([prompts], **options)[0].text
        return [continuation.text for continuation in self.continuations(prompts, **options)]

    def continuations(
        self,
        prompts: Sequence[Prompt],
        *,
        n: int = 1,
        logprobs: bool = False,
        max_new_tokens: int = 128,
        temperature: float = 0.8,
        top_k: int = 50,
        stop: str | Sequence[str] = (),
        **options: Any,
    ) -> list[Written]:
        """Continue several texts or conversations, `n` times: text, tokens and end of each.

        logprobs: also the token ids, and the logarithm of each token's probability in the model,
        before temperature and cuts. options: as in `generate`.
        """
        writer = Writer(
            self.model,
            self.tokenizer,
            self.device,
            tokens=max_new_tokens,
            n=n,
            logprobs=logprobs,
            temperature=temperature,
            top_k=top_k,
            stop=[stop] if isinstance(stop, str) else stop,
            **options,
        )
        return list(writer.write(prompts))

    def chat(self, said: str | Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Answer a user's text, or a conversation, as the assistant of the run's chat template.

        said: a text, or messages {"role": "user", "content": ...} and so on. options: as of
        `generate`.
        """
        asked = [{"role": "user", "content": said}] if isinstance(said, str) else said
        prompts: Any = [asked]
        return self.generate(prompts, **options)[0].strip()

    @torch.no_grad()
    def logits(self, text: str) -> Tensor:
        """fp32 [seq, vocab] on the model's device: row t predicts the token after t + 1 tokens.

        The tokens are tokenizer.encode(text), after a token for the begin of documents, if the
        tokenizer has one. Raises ValueError for more than model.max_seq_len.
        """
        ids = encode_prompt(self.tokenizer, text)
        most = int(self.model.max_seq_len)  # type: ignore[arg-type]
        if len(ids) > most:
            raise ValueError(f"the text has {len(ids)} tokens, more than model.max_seq_len={most}")
        with evaluating(self.model):
            logits = self.model(torch.tensor([ids], device=self.device))
        return logits[0, :, : self.tokenizer.vocab_size].float()

    def evaluate(
        self,
        data: Text | None = None,
        *,
        tasks: Sequence[str] | Mapping[str, Any] = (),
        items: int = 0,
        too_long: Literal["refuse", "cut"] = "refuse",
    ) -> dict[str, float]:
        """The metrics of the run's objective over the run's evaluated text, or all of a given text;
        or with `tasks` every TASK/METRIC of tasks, with its standard error TASK/METRIC_stderr.

        data: a file or folder, options of data as in an entry of eval.sets, or a list of documents.
        tasks: words as of forge.evaluate, or entries of eval.tasks by name. items: of a task,
        spread evenly over it; 0 = all. too_long: what becomes of longer prompts. Raises ValueError
        for an unreadable text, for a text changed since the run, and for impossible tasks.
        """
        if tasks:
            if data is not None:
                raise ValueError("evaluate(): data is a text, tasks name theirs; give one of both")
            return flat_metrics(self.results(tasks, items=items, too_long=too_long))
        most = 0
        if data is None:
            stores, most = self._held_out(), most_sequences(self.config.eval, self.config.train)
        elif isinstance(data, str | os.PathLike | Mapping):
            stores = {"": self._read(data)}
        else:
            self._refuse_other("")
            stores = {"": _documents(self, data)}
        texts = examples_evaluated(self.config, stores, most=most)
        add_references(self._objective, self.config, texts, self.device, Ranks())
        return evaluate_sets(
            self.config, stores, self.model, self._objective, sequences=most, device=self.device
        )

    def results(
        self,
        tasks: Sequence[str] | Mapping[str, Any],
        *,
        items: int = 0,
        too_long: Literal["refuse", "cut"] = "refuse",
    ) -> list[TaskResult]:
        """The results of tasks, with a row for each item; options as in `evaluate`."""
        entries = tasks if isinstance(tasks, Mapping) else _entries(tasks)
        given = {"tasks_items": items, "too_long": too_long}
        section = replace(self.config.eval, **given)
        config = replace(self.config, eval=section)
        for name, entry in entries.items():
            for key, what, fix in () if is_text(entry) else faults(name, entry):
                raise ValueError(f"{key}: {what} -> {fix}")
        engine = Engine(self.model, device=self.device)
        ready = tasks_ready(entries, config, self.tokenizer, section, engine.longest)
        runner = Runner(engine=engine, tokenizer=self.tokenizer, cache=Cache(None))
        return runner.run(ready)

    @cached_property
    def _objective(self) -> Objective:
        return build_objective(self.config, self.device, Ranks(), tokenizer=self.tokenizer)

    def _refuse_other(self, kind: str) -> None:
        """Raise ValueError for examples the objective does not read."""
        if kind not in (reads := self.config.objective.compares):
            expected = " or ".join(EXAMPLES[kind_read] for kind_read in reads)
            message = f"the run's objective reads {expected}, and this is {EXAMPLES[kind]}"
            raise ValueError(f"evaluate(): {message}; name other data")

    def _held_out(self) -> dict[str, TokenStore]:
        prepared = prepared_text(self.config, lambda stage: None)
        if prepared.identity != Saved(self.path).meta["data"]:
            message = "the text of the run, or the tokenizer that was made of it, has changed"
            raise ValueError(f"{message}; name a text: evaluate(data=...)")
        if not prepared.evaluated:
            raise ValueError("the run holds out no text; name one: evaluate(data=...)")
        return prepared.evaluated

    def _read(self, data: str | os.PathLike[str] | Mapping[str, Any]) -> TokenStore:
        entry = dict(data) if isinstance(data, Mapping) else {"path": os.fspath(data)}
        for _, fault, *_ in entry_faults(self.config.data, "evaluate", "data", entry):
            raise ValueError(f"evaluate({data!r}): {fault}")
        section = held_out_section(self.config.data, entry, "evaluate.data")
        self._refuse_other(section.examples)
        making = partial(build, trust=self.config.run.trust)
        store = prepare_tokens(section, self.tokenizer, build=making).val
        if not len(store):
            raise ValueError(f"evaluate({data!r}): there is no text in it")
        return store


def _entries(words: Sequence[str]) -> Mapping[str, Any]:
    """The entries of presets and files. Raises ConfigError for an unknown word."""
    composed = compose(task_words(words, ()))
    if composed.problems:
        raise ConfigError(composed.problems)
    return composed.typed().eval.tasks


class _Written(MappedStore):
    """Documents in memory, without a file."""

    @property
    def fingerprint(self) -> str:
        raise NotImplementedError("they are read at once, and are not kept")


def _documents(loaded: Loaded, texts: Sequence[str]) -> TokenStore:
    encoded = loaded.tokenizer.encode_batch(list(texts)) if texts else []
    store = _Written([np.concatenate([loaded.tokenizer.document(ids) for ids in encoded])])
    if len(store) < 2:
        raise ValueError("evaluate(): the documents have no token to predict")
    return store


def chosen_device(name: str | None) -> torch.device | None:
    """Parse the name of a device; None for None. Raises ValueError for a missing device."""
    if name is None:
        return None
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f"device={name!r}: it is cpu, cuda, cuda:N or mps")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={name!r}: there are {torch.cuda.device_count()} GPUs")
    if device.type == "mps" and (device.index or not torch.backends.mps.is_available()):
        raise ValueError(f"device={name!r}: torch finds no such Apple GPU")
    return device


def _checkpoint(path: Path, step: Step) -> Path:
    """The checkpoint to load. Raises CheckpointError."""
    if step == LAST:
        return path
    if (path / META).is_file() or Saved(path).step >= 0:
        raise CheckpointError(f"{path} is one checkpoint; leave step={step!r} out")
    if step == BEST:
        return path / BEST
    steps_saved = [saved.step for saved in list_checkpoints(saved_folder(path))]
    if not isinstance(step, int) or step not in steps_saved:
        steps = ", ".join(map(str, steps_saved)) or "none"
        message = f"step={step!r}: {path} has no such checkpoint, but those of steps {steps}"
        raise CheckpointError(f'{message}; or "best", or "last"')
    return saved_folder(path) / f"step_{step}"
