"""Words of a command line that name tasks: presets of the task group, and files."""

from __future__ import annotations

from collections.abc import Sequence

from forge.compose.composition import compose
from forge.config.problems import COMMAND_LINE, closest, did_you_mean, quoted, refusal
from forge.tasks.declared import entry_of

GROUP = "task"


def words(typed: Sequence[str], config_dirs: Sequence[str]) -> list[str]:
    """Overrides of the words of a command line: a file is a task or a text, and any other word
    without = a preset of the task group.
    """
    overrides, bare = [], [word for word in typed if "=" not in word and word[:1] != "~"]
    library = compose([], config_dirs=config_dirs).library if bare else None
    known = library.options(GROUP) if library else []
    for word in typed:
        if word not in bare:
            overrides.append(word)
            continue
        if declared := entry_of(word):
            name, entry = declared
            overrides += [f"+eval.tasks.{name}.{key}={quoted(v)}" for key, v in entry.items()]
            continue
        if word not in known:
            near = did_you_mean([each for each in known if word in each])
            near = near or did_you_mean(closest(word, known))
            message = f"there is no task or file {word}."
            raise refusal(word, message, near or "such as olmes/arc_easy", COMMAND_LINE)
        overrides.append(f"+{GROUP}@eval.tasks.{word.rpartition('/')[2]}={word}")
    return overrides
