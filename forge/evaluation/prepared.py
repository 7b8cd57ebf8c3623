"""Tasks made ready for a tokenizer and a model's length, before any model is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from forge.config.eval import CUT, REFUSE
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.evaluation.encoding import encode_aligned, encode_pair, first_id, shortened, windows
from forge.evaluation.requests import Request
from forge.tasks.item import Aligned, Ask, Document, Item, Pair, Prompt, spread
from forge.tasks.task import Task


class Limits(NamedTuple):
    """Limits of what a task asks. longest: tokens that the model reads. too_long: what becomes of a
    longer context: refuse, or cut its beginning off. items: of a task, spread evenly over it; 0 =
    all.
    """

    longest: int
    too_long: str = REFUSE
    items: int = 0


@dataclass(frozen=True, kw_only=True)
class PreparedTask:
    """A task with its items, and the requests of each ask; None for a prompt, continued instead.

    of: number of items before the budget.
    """

    name: str
    task: Task
    items: Sequence[Item]
    requests: Sequence[Sequence[Sequence[Request] | None]]
    of: int


def ready(tasks: Mapping[str, Task], tokenizer: Tokenizer, limits: Limits) -> list[PreparedTask]:
    """Read and encode the items of tasks. Raises ValueError, naming the task, for a task without
    items, and for an ask without tokens or longer than the model.
    """
    return [_ready(name, task, tokenizer, limits) for name, task in tasks.items()]


def _ready(name: str, task: Task, tokenizer: Tokenizer, limits: Limits) -> PreparedTask:
    items = list(task.items())
    if not items:
        raise ValueError(f"eval.tasks.{name}: it has no items")
    chosen = spread(items, limits.items)
    requests, long = [], []
    for item in chosen:
        try:
            asked = [requests_of(ask, tokenizer, limits.longest) for ask in item.asks]
        except ValueError as error:
            raise ValueError(f"eval.tasks.{name}, item {item.id}: {error}") from None
        for ask, made in zip(item.asks, asked, strict=True):
            size = _length(ask, made, tokenizer)
            if size > limits.longest and not isinstance(ask, Document):
                long.append((size, item.id))
        if limits.too_long == CUT:
            try:
                asked = [
                    each and [shortened(one, limits.longest) for one in each] for each in asked
                ]
            except ValueError as error:
                raise ValueError(f"eval.tasks.{name}, item {item.id}: {error}") from None
        requests.append(asked)
    if long and limits.too_long == REFUSE:
        size, item_id = max(long)
        counted = len({item_id for _, item_id in long})
        message = f"{counted} of {len(chosen)} items are longer than the model's {limits.longest}"
        hint = "eval.too_long=cut leaves out the beginning of their prompts"
        raise ValueError(f"eval.tasks.{name}: {message} tokens (item {item_id} has {size}); {hint}")
    return PreparedTask(name=name, task=task, items=chosen, requests=requests, of=len(items))


def requests_of(ask: Ask, tokenizer: Tokenizer, longest: int) -> list[Request] | None:
    """The requests of an ask; None for a prompt."""
    if isinstance(ask, Pair):
        return [encode_pair(tokenizer, *ask)]
    if isinstance(ask, Aligned):
        request = encode_aligned(tokenizer, ask, longest)
        return [request] if request.continuation else []
    if isinstance(ask, Document):
        return windows(ask.ids, first_id(tokenizer), longest)
    return None


def _length(ask: Ask, made: Sequence[Request] | None, tokenizer: Tokenizer) -> int:
    if isinstance(ask, Prompt):
        begin = tokenizer.begin_id is not None
        return len(tokenizer.encode(ask.text)) + begin + 1
    return max((request.length for request in made or ()), default=0)


def all_requests(tasks: Sequence[PreparedTask]) -> Iterator[Request]:
    """Every request of the tasks, in order."""
    for task in tasks:
        for asked in task.requests:
            for requests in asked:
                yield from requests or ()
