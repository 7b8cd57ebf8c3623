"""The text of tokens as they come: whole characters, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from forge.data.tokenizers.tokenizer import Tokenizer

UNSURE = "\N{REPLACEMENT CHARACTER}"  # of bytes that may begin a character
WINDOW = 16  # tokens that are decoded again with each new one


class Speller:
    """Spells a growing list of tokens. stop: strings; the text ends before the first.

    The text that was shown is never taken back: characters that are not whole, and what may become
    a stop string, wait.
    """

    def __init__(
        self, tokenizer: Tokenizer, ends: frozenset[int], stop: Sequence[str] = ()
    ) -> None:
        self.tokenizer, self.ends, self.stop = tokenizer, ends, tuple(stop)
        self.text = ""
        self.stopped = False
        self._begin = self._done = 0  # of the window: its first token, its characters in the text
        self._shown = 0

    def add(self, tokens: list[int]) -> bool:
        """Take the last of all tokens; whether a stop string is in the text now."""
        window = self.tokenizer.decode(tokens[self._begin :])
        sure = len(window.rstrip(UNSURE))
        if sure > self._done:
            before = len(self.text)
            self.text += window[self._done : sure]
            self._done = sure
            self._look(before)
        if len(tokens) - self._begin > WINDOW and sure == len(window):
            self._begin = len(tokens) - WINDOW // 4
            self._done = len(self.tokenizer.decode(tokens[self._begin :]))
        return self.stopped

    def finish(self, tokens: list[int]) -> str:
        """Take the end of the tokens; returns why it ended: `stop` or `length`."""
        text = self.tokenizer.decode([token for token in tokens if token not in self.ends])
        # Some tokenizers spell a token by its neighbours; what was shown stays.
        shown = self.text[: self._shown]
        self.text = shown + text[self._shown :]
        self._look(0)
        self.stopped = self.stopped or bool(tokens and tokens[-1] in self.ends)
        return "stop" if self.stopped else "length"

    def new(self, *, over: bool) -> str:
        """The text that was not shown yet, and can be shown now."""
        until = len(self.text) if over else len(self.text) - self._waiting()
        text = self.text[self._shown : until]
        self._shown = max(until, self._shown)
        return text

    def _look(self, before: int) -> None:
        """Cut the text before the first stop string. before: length that was looked at."""
        if not self.stop:
            return
        begin = max(before - max(map(len, self.stop)) + 1, 0)
        places = [place for stop in self.stop if (place := self.text.find(stop, begin)) >= 0]
        if places:
            self.text, self.stopped = self.text[: min(places)], True

    def _waiting(self) -> int:
        """Characters at the end of the text that may begin a stop string."""
        most = 0
        for stop in self.stop:
            for size in range(min(len(stop) - 1, len(self.text)), most, -1):
                if self.text.endswith(stop[:size]):
                    most = size
                    break
        return most
