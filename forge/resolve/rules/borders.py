"""Rules on borders of documents: how the documents of each text begin and end."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.data.chats import Chats
from forge.config.data.mixture import Mix
from forge.config.data.reading import WEIGHT, held_out_section
from forge.config.data.text import BORDERS, BUFFERED, Data
from forge.config.problems import quoted
from forge.config.root import Config
from forge.config.rule import Findings, get, rule
from forge.config.tokenizers.tokenizer import BPE, END_OF_TEXT, Bytes, Tokenizer
from forge.config.tokenizers.tokenizer_files import Existing, Facts
from forge.resolve.rules.entries import entry_faults

PACKED = "data.pack_sequences"
READ = ("data.add_bos", "data.add_eos", "data.sources", "data.validation", "eval.sets")


@rule("data.borders", *READ, "tokenizer.add_bos", "tokenizer.add_eos", "tokenizer.bos_token")
def borders(config: Config, tokenizer: Tokenizer) -> Findings:
    """Where a text has add_bos or add_eos of its own, the tokenizer has the tokens for that."""
    for key, data in all_read(config):
        overrides = data.borders(tokenizer)
        border_tokens = _tokens(tokenizer) if overrides else None
        if border_tokens is None:
            continue
        begins, ends = (overrides.get(name, getattr(tokenizer, name)) for name in BORDERS)
        named_tokens = zip(BORDERS, border_tokens, strict=True)
        missing = next((n for n, token in named_tokens if overrides.get(n) and token is None), "")
        if not begins and not ends:
            message = "nothing would say where a document of it ends."
            other = next(iter(overrides))
            yield f"{key}.{other}=false", message, _typed(config, key, f"{other}=true")
        elif missing and isinstance(tokenizer, Existing):
            facts, token = tokenizer.facts(), f"{missing.removeprefix('add_')}_token"
            assert isinstance(facts, Facts)
            yield f"{key}.{missing}=true", *tokenizer.no_token(token, facts.added)
        elif missing == "add_eos":
            message = f"{END_OF_TEXT} is none of tokenizer.special_tokens."
            yield f"{key}.{missing}=true", message, f"{key}.add_eos=false"
        elif missing:
            message = (
                "a tokenizer that is made for the run has bos_token with tokenizer.add_bos=true "
            )
            message += "alone; texts that do not begin with it say add_bos=false."
            yield f"{key}.add_bos=true", message, f"tokenizer.add_bos=true, or {key}.add_bos=false"
        elif begins and ends and border_tokens[0] == border_tokens[1]:
            message = f"{border_tokens[0]} would begin and end every document of it."
            other = next(iter(overrides))
            yield f"{key}.{other}=true", message, _typed(config, key, f"{other}=false")


@rule("data.pack_borders", PACKED, *READ, "tokenizer.add_eos")
def pack_borders(config: Config, data: Data, tokenizer: Tokenizer) -> Findings:
    """data.pack_sequences tells documents apart by the token that ends them: tokenizer.add_eos."""
    if not data.pack_sequences:
        return
    for key, text in all_read(config):
        overrides = text.borders(tokenizer)
        # The ends of conversations are marked, whatever token a template writes there.
        if isinstance(text, Chats) or overrides.get("add_eos", tokenizer.add_eos):
            continue
        if "add_eos" not in overrides:
            yield PACKED, f"tokenizer.add_eos=true, or {PACKED}=false"
            return
        message = f"documents are told apart by the token that ends them, which {key} does without."
        yield PACKED, message, f"{_typed(config, key, 'add_eos=true')}, or {PACKED}=false"


@rule("data.crop_borders", "data.packing", *READ, "tokenizer.add_bos", "tokenizer.add_eos")
def crop_borders(config: Config, data: Data, tokenizer: Tokenizer) -> Findings:
    """best_fit_crop and best_fit_pad find documents by one token in all texts: their end, or with
    tokenizer.add_eos=false their beginning.
    """
    border = "add_eos" if tokenizer.add_eos else "add_bos"
    for key, text in all_read(config) if data.packing in BUFFERED else ():
        if text.borders(tokenizer).get(border) is False:
            message = f"documents are told apart by the token of {border}, which {key} does "
            yield "data.packing", f"{message}without.", f"{_typed(config, key, f'{border}=true')}"


def _tokens(tokenizer: Tokenizer) -> tuple[str | None, str | None] | None:
    """Tokens that begin and end documents; None for a tokenizer unknown before its build."""
    if isinstance(tokenizer, BPE | Bytes):
        return tokenizer.begin if tokenizer.add_bos else None, tokenizer.end
    facts = tokenizer.facts() if isinstance(tokenizer, Existing) else ""
    if not isinstance(tokenizer, Existing) or isinstance(facts, str):
        return None
    return tokenizer.begin_token(facts), tokenizer.end_token(facts)


def _typed(config: Config, key: str, option: str) -> str:
    """Spell the override of a text's option: with + for an option new to its entry."""
    exists = key == "data" or option.partition("=")[0] in get(config, key)
    return f"{key}.{option}" if exists else f"+{key}.{option}"


def all_read(config: Config) -> Iterator[tuple[str, Data]]:
    """Yield (key, section) of each text the run reads; other rules report faults of entries."""
    data = config.data
    if not isinstance(data, Mix):
        yield "data", data
    elif not any(
        any(entry_faults(data, "data.sources", name, entry, more=(WEIGHT,)))
        for name, entry in data.sources.items()
    ):
        sections = data.source_sections()
        yield from ((f"data.sources.{name}", section) for name, section in sections.items())
    validation = {"validation": data.validation} if data.validation else {}
    for above, entries in {"data": validation, "eval.sets": config.eval.sets}.items():
        for name, entry in entries.items():
            if not any(entry_faults(data, above, name, entry)):
                yield f"{above}.{name}", held_out_section(data, entry, f"{above}.{name}")


@rule(
    "tokenizer.file_begins",
    "tokenizer.path",
    "tokenizer.bos_token",
    "tokenizer.add_bos",
    warning=True,
)
def file_begins(tokenizer: Existing) -> Findings:
    """A file that puts a token before every text is read without it unless tokenizer.add_bos."""
    facts = tokenizer.facts()
    if not isinstance(facts, Facts) or facts.first is None:
        return
    first, begin, end = facts.first, tokenizer.begin_token(facts), tokenizer.end_token(facts)
    if tokenizer.add_bos and begin == first:
        return
    read = f"documents begin with {begin}" if tokenizer.add_bos else "the run trains without it"
    message = f"{tokenizer.place} puts {first} before every text; {read}, and its exports"
    message += " encode texts alike."
    hint = "tokenizer.add_bos=true"
    if begin != first:
        hint += f' "tokenizer.bos_token={quoted(first)}"'
    yield "tokenizer.add_bos", message, hint + (" tokenizer.add_eos=false" if first == end else "")


@rule(
    "tokenizer.file_ends",
    "tokenizer.path",
    "tokenizer.eos_token",
    "tokenizer.add_eos",
    warning=True,
)
def file_ends(tokenizer: Existing) -> Findings:
    """A file that puts a token after every text is read without it, and exported without it."""
    facts = tokenizer.facts()
    if not isinstance(facts, Facts) or facts.last is None:
        return
    read = "the run trains without it"
    if tokenizer.add_eos:
        read = f"documents of the run end with {tokenizer.end_token(facts)}, prompts with nothing"
    message = (
        f"{tokenizer.place} puts {facts.last} after every text; {read}, and its exports encode"
    )
    hint = "take that token out of the post_processor of the file, which is then read as it is"
    yield "tokenizer.path", f"{message} texts without it.", hint
