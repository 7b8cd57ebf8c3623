"""The conversation: lines of a user, commands, and streamed answers."""

from __future__ import annotations

import argparse
import json
import queue
import sys
from pathlib import Path

from forge.cli import CONTROL
from forge.data.tokenizers.render import encode_prompt, stated_ends, turn_end_ids
from forge.models.token_distribution import Sampling
from forge.serve.engine import Engine, Piece, Request
from forge.serve.loading import talks
from forge.serve.spelling import UNSURE
from forge.training.checkpoints.restore import Trained

NUMBERS = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
    "seed": int,
    "tokens": int,
}
HELP = """\
/regenerate        answer the last message again
/clear             forget the conversation
/system [TEXT]     give another system prompt, or none, and begin again
/save FILE.jsonl   add the conversation to a file, as a row of data=chat
/set               show the options of sampling
/set NAME VALUE    change one, as in /set temperature 0.5
/help              this list
/quit              end (also Ctrl-D); Ctrl-C stops an answer"""
PLAIN = "This run learned from plain text, not from conversations: what you type is continued."


class Talk:
    """A conversation with a model; with one of plain text, a text that both continue."""

    def __init__(self, trained: Trained, options: argparse.Namespace) -> None:
        self.tokenizer, self.stop = trained.tokenizer, tuple(options.stop)
        self.values = {name: getattr(options, name) for name in NUMBERS}
        Sampling(**{name: value for name, value in self.values.items() if name != "tokens"})
        self.engine = Engine(trained.model, trained.tokenizer, trained.device, slots=1)
        self.chat = talks(trained)
        if options.system is not None and not self.chat:
            raise ValueError("--system: this run learned from plain text, which has no such turn")
        self.system = options.system
        self.turns: list[dict[str, str]] = []

    def run(self) -> int:
        """Read lines until the end."""
        self._tell("/help lists the commands" if self.chat else f"{PLAIN} /help lists the commands")
        self.engine.start()
        try:
            while (line := self._line()) is not None:
                if not line.strip():
                    continue
                try:
                    if line.startswith("/"):
                        if self._command(*line.strip().partition(" ")[::2]):
                            break
                    else:
                        self._answer([*self.turns, {"role": "user", "content": line}])
                except (ValueError, OSError) as error:
                    self._tell(str(error))
        finally:
            self.engine.close()
        return 0

    def _line(self) -> str | None:
        """The next line of the user; None at the end."""
        try:
            return input("> " if sys.stdin.isatty() else "")
        except (EOFError, KeyboardInterrupt):
            return None

    def _tell(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def _command(self, name: str, rest: str) -> bool:
        """Do a command; whether it ends the conversation."""
        rest = rest.strip()
        if name == "/regenerate":
            self._again()
        elif name in ("/clear", "/system"):
            self._begin(name, rest)
        elif name == "/save":
            self._save(rest)
        elif name == "/set":
            self._set(*rest.partition(" ")[::2])
        elif name == "/help":
            self._tell(HELP)
        elif name not in ("/quit", "/exit"):
            raise ValueError(f"there is no command {name}; /help lists them")
        return name in ("/quit", "/exit")

    def _begin(self, name: str, system: str) -> None:
        if name == "/system":
            if not self.chat:
                raise ValueError("this run learned from plain text, which has no system turn")
            self.system = system or None
        self.turns = []
        self._tell("a new conversation" if self.chat else "a new text")

    def _again(self) -> None:
        """Answer the last message again."""
        if not self.turns:
            raise ValueError("there is no answer yet")
        self._answer(self.turns[:-1])

    def _save(self, name: str) -> None:
        """Add the conversation to a file, a row a conversation."""
        if not name.endswith(".jsonl"):
            raise ValueError("give a file that ends with .jsonl: /save talk.jsonl")
        if not self.turns:
            raise ValueError("there is nothing to save yet")
        row = {"messages": self._messages(self.turns)} if self.chat else {"text": self._text()}
        with Path(name).expanduser().open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._tell(f"saved to {name}")

    def _set(self, name: str, value: str) -> None:
        """Change an option of sampling, or show all of them."""
        if not name:
            self._tell("  ".join(f"{key}={number}" for key, number in self.values.items()))
            return
        name = name.replace("-", "_")
        if name not in NUMBERS:
            raise ValueError(f"there is no option {name}; options are {', '.join(NUMBERS)}")
        try:
            number = NUMBERS[name](value)
        except ValueError:
            raise ValueError(f"{name} is a number, not {value!r}") from None
        values = self.values | {name: number}
        Sampling(**{key: each for key, each in values.items() if key != "tokens"})
        if values["tokens"] < 1:
            raise ValueError(f"tokens={number}: must be at least 1")
        self.values = values

    def _messages(self, turns: list[dict[str, str]]) -> list[dict[str, str]]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *turns]

    def _text(self) -> str:
        return "".join(turn["content"] for turn in self.turns)

    def _answer(self, turns: list[dict[str, str]]) -> None:
        """Print the answer to the last turn as it comes, and keep both."""
        text = "".join(turn["content"] for turn in turns)
        prompt = encode_prompt(self.tokenizer, self._messages(turns) if self.chat else text)
        room = self.engine.length - len(prompt)
        if room < 1:
            raise ValueError(
                f"the conversation has {len(prompt)} tokens, and the model reads "
                f"{self.engine.length}; /clear begins again"
            )
        ends = {self.tokenizer.end_id}
        if self.chat:
            ends |= {*turn_end_ids(self.tokenizer), *stated_ends(self.tokenizer)}
        pieces: queue.Queue[Piece] = queue.Queue()
        sampling = {name: value for name, value in self.values.items() if name != "tokens"}
        request = Request(
            prompt=tuple(prompt),
            put=pieces.put,
            most=min(self.values["tokens"], room),
            sampling=Sampling(**sampling),
            ends=frozenset(ends),
            stop=self.stop,
        )
        self.engine.submit(request)
        said = _streamed(request, pieces)
        # The same message again, or the same answer again, draws other numbers.
        self.values["seed"] += 1
        answer = said.strip() if self.chat else said
        self.turns = [*turns, {"role": "assistant", "content": answer}]


def _streamed(request: Request, pieces: queue.Queue[Piece]) -> str:
    """Print an answer piece by piece; Ctrl-C stops it. Raises ValueError where the model fails."""
    text = ""
    try:
        while True:
            piece = pieces.get()
            if piece.error:
                raise ValueError(piece.error)
            # Chat templates leave the space before an answer to the model.
            new = piece.text if text else piece.text.lstrip("\n")
            # A model may have learned what moves a terminal's cursor.
            shown = CONTROL.sub(UNSURE, new) if sys.stdout.isatty() else new
            print(shown, end="", flush=True)
            text += new
            if piece.finish:
                break
    except KeyboardInterrupt:
        request.cancel()
    finally:
        print(flush=True)
    return text
