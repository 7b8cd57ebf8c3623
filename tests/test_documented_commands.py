"""Every command in the README and the docs composes and resolves."""

import base64
import json
import re
import shlex
from pathlib import Path

import pytest
from helpers.folders import write_folder
from helpers.refusing import resolved

from forge.config.replicas.fault_tolerance import FaultTolerance
from forge.launch.optuna.search import check_search
from forge.launch.sweep.preflight import Preflight

ROOT = Path(__file__).parents[1]
NAMES = (
    "getting_started concepts how_to layouts launching experts optimizers "
    "sweeps slurm reports scaling scaling_laws hugging_face fine_tuning "
    "index readers/use readers/fine_tune readers/extend"
)
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in NAMES.split())]
# Whose spans are parts of a command.
PARTS = {"fine_tuning.md", "sweeps.md", "slurm.md", "reports.md", "layouts.md", "experts.md"}
PARTS |= {"scaling.md", "scaling_laws.md"}
REFUSED = ("optimizer.lrr=1", "model.n_heads=3,4", "scheduler.stable_steps=10")
# Refused on purpose, a pattern, or the user's own file.
MADE_BEFORE = (
    "nanochat_d4_cpu/sft",
    "run.dir=runs/base",
    "run.dir=runs/chat",
    "branch_of=runs/",
    "experiment=wsd_hor",
)
LEFT_OUT = (*REFUSED, *MADE_BEFORE, "group=option", "LEAST:MOST", "...", "<", "experiment=tune")


def commands() -> list[tuple[str, str]]:
    """(page, overrides): lines that call a verb, and code spans made of overrides alone."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for verb in re.findall(
            r"python -m forge\.(?:train|check|explain|prepare) ?([^#`\n]*)", text
        ):
            found.append((page.name, verb.strip()))
        for span in re.findall(r"`([^`\n]+)`", text) if page.name not in PARTS else ():
            if all(re.fullmatch(r"[\w.]+=\S+", word) for word in span.split()):
                found.append((page.name, span))
    return [(page, text) for page, text in found if not any(part in text for part in LEFT_OUT)]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the commands name, a login to W&B, and torchft."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "http://localhost:29510")
    monkeypatch.setattr(FaultTolerance, "has_torchft", staticmethod(lambda: True))
    for name in ("books", "docs", "RUN", "runs/base/tokenizer", "runs/chat/tokenizer"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "my" / "conf").mkdir(parents=True)
    for name in ("my.txt", "books/one.txt", "docs/one.md"):
        (tmp_path / name).write_text("text\n")
    for name in ("chats.jsonl", "pairs.jsonl"):
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "my.jsonl").write_text('{"prompt": "2+2=", "response": "4"}\n')
    (tmp_path / "corpus.jsonl").write_text('{"body": "text"}\n')
    (tmp_path / "my" / "tokens" / "tokenizer").mkdir(parents=True)
    (tmp_path / "my" / "tokens" / "a.npy").touch()
    (tmp_path / "my" / "tokenizer").mkdir()
    for name in ("my/model", "smollm2", "sft-model"):
        write_folder(tmp_path / name, max_position_embeddings=2048)
    (tmp_path / "my" / "tokenizer.model").write_bytes(
        b"\n\x07\n\x05<unk>\n\x05\n\x03<s>\n\x06\n\x04</s>"
    )
    ranks = (f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    (tmp_path / "my" / "ranks.tiktoken").write_text("".join(ranks))
    kept = str(tmp_path / "tokenizer.json")
    monkeypatch.setattr("forge.config.data.hub.fetch_tokenizer", lambda name, revision: (kept, ""))
    for name in (
        "tokenizer.json",
        "my/tokenizer.json",
        "my/model/tokenizer.json",
        "smollm2/tokenizer.json",
        "sft-model/tokenizer.json",
        "my/tokenizer/tokenizer.json",
        "runs/base/tokenizer/tokenizer.json",
        "runs/chat/tokenizer/tokenizer.json",
        "my/tokens/tokenizer/tokenizer.json",
    ):
        content = {"model": {"vocab": {"a": 0, "</s>": 1}}, "added_tokens": []}
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(("page", "command"), commands())
def test_documented_command_is_legal(desk: Path, page: str, command: str) -> None:
    words = [word for word in shlex.split(command) if "=" in word]
    if "sweeper=optuna" in words:
        assert len(words) == 1 or check_search(Preflight(words))
        return
    if shlex.split(command)[:1] == ["-m"]:
        assert len(Preflight(words).points()) > 1
        return
    apple = "run.device=mps" in words
    assert resolved(words, as_point=True, apple=apple).config.frozen


def test_commands_are_found() -> None:
    assert len(commands()) > 25
