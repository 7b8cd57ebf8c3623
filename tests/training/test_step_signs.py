"""A run says in its directory that it finishes steps, as long as some follow."""

from __future__ import annotations

import json

from forge.training.callback import Callback


class Looks(Callback):
    """Notes what the run says of its steps when one is finished, and when none follows."""

    def __init__(self, file) -> None:
        self.file, self.said, self.after = file, [], None

    def on_step_end(self, loop, output) -> None:
        self.said.append(json.loads(self.file.read_text())["step"])

    def on_end(self, loop) -> None:
        self.after = self.file.exists()


def test_from_the_step_that_it_goes_on_from_to_the_last(assembled) -> None:
    loop = assembled("train.max_steps=3 eval=off checkpoint=off")
    (loop.run_dir / "alive").mkdir()
    looks = Looks(loop.run_dir / "alive" / "step_0")
    loop.callbacks.append(looks)
    loop.run()
    assert looks.said == [0, 2, 2]  # the second has the time that a step takes, others are rare
    assert looks.after is False
