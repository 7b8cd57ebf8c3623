"""`python -m forge.completion SHELL`: what makes the tab key complete `forge VERB ...` in a shell.

Examples:
    eval "$(forge completion bash)"
    forge completion zsh >> ~/.zshrc
    forge completion fish > ~/.config/fish/completions/forge.fish
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from collections.abc import Sequence
from itertools import pairwise

from forge import cli, verbs
from forge.config.problems import COMMAND_LINE, refusal

BASH = """\
_forge() {
  local line="${COMP_LINE:0:COMP_POINT}" word
  word="${line##*[[:space:]]}"
  local IFS=$'\\n'
  COMPREPLY=($(forge completion --query "$line" 2>/dev/null))
  [[ "$COMP_WORDBREAKS" == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*=}"}"}")
}
complete -o default -o nospace -F _forge forge"""
ZSH = """\
_forge() {
  local -a found
  found=("${(@f)$(forge completion --query "$LBUFFER" 2>/dev/null)}")
  if [[ -n "$found" ]]; then compadd -S '' -- $found; else _files; fi
}
autoload -Uz compinit && compinit
compdef _forge forge"""
FISH = """\
complete -c forge -a '(forge completion --query (commandline -cp) 2>/dev/null)'"""
FOLDER_FLAGS = ("-cd", "--config-dir", "-cp", "--config-path")
SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the code for a shell, or, called by the code, the completions of a line."""
    arguments = cli.Parser("forge.completion", "What makes the tab key complete in a shell.")
    arguments.add_argument("shell", nargs="?", metavar="SHELL", help=", ".join(SHELLS))
    query = "instead, print how this line may continue"
    arguments.add_argument("--query", metavar="LINE", help=query)
    options = arguments.parse_args(argv)
    if options.query is not None:
        return cli.print_text("\n".join(query_line(options.query)))
    return cli.refuse(lambda: print(code_for(options.shell)) or 0)


def code_for(shell: str | None) -> str:
    """The completion code for a shell to evaluate. Raises ConfigError for an unknown shell."""
    if shell not in SHELLS:
        message = f"there is completion for {', '.join(SHELLS)}."
        raise refusal(f"completion {shell or ''}".strip(), message, "completion bash", COMMAND_LINE)
    return SHELLS[shell]


def query_line(line: str) -> list[str]:
    """Completions of the last word of `forge VERB ...`; nothing where a file is expected."""
    words = line.split()[1:]
    word = "" if line[-1:].isspace() or not words else words.pop()
    commands = verbs.verbs()
    if not words:
        return [f"{name} " for name in commands if name.startswith(word)]
    name, *earlier = words
    if name not in commands:
        return []
    if word.startswith("-"):
        return [flag for flag in _flags(commands[name].module) if flag.startswith(word)]
    usage = commands[name].usage.split()[1:]
    is_path = usage[:1] in (["RUN"], ["OUT"]) and not earlier
    if is_path or "[overrides]" not in usage:
        return []
    from forge.compose.candidates import completions
    from forge.compose.trust import where_trusted

    folders = [value for flag, value in pairwise(earlier) if flag in FOLDER_FLAGS]
    return completions(word, where_trusted(earlier), folders)


def _flags(module: str) -> list[str]:
    """The long flags listed in a verb's help."""
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        importlib.import_module(module).main(["--help"])
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text.getvalue())))


if __name__ == "__main__":
    sys.exit(main())
