"""A login of W&B is found where W&B finds it, and asked for before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

import forge.train
from forge.config.metrics import Metrics
from forge.config.wandb_login import login, sends

KEY = "0" * 40
CLOUD, OWN = "api.wandb.ai", {"WANDB_BASE_URL": "http://w.org:80"}
NETRC, MINE, SETTINGS = "{home}/.netrc", "{home}/mine", ".config/wandb/settings"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a working directory without anything of W&B."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    return tmp_path


def put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("file", "text", "environ", "host", "source"),
    [
        ("", "", {"WANDB_API_KEY": ""}, CLOUD, ""),
        ("", "", {"WANDB_API_KEY": KEY}, CLOUD, "WANDB_API_KEY"),
        (".netrc", f"machine {CLOUD} login user password {KEY}\n", {}, CLOUD, NETRC),
        ("mine", f"machine {CLOUD} password {KEY}\n", {"NETRC": MINE}, CLOUD, MINE),
        (".netrc", f"machine github.com login user password {KEY}\n", {}, CLOUD, ""),
        (".netrc", f"machine {CLOUD} password {KEY}\n", OWN, "w.org", ""),
        (".netrc", f"machine w.org:80 login user password {KEY}\n", OWN, "w.org", NETRC),
        (".netrc", "nonsense\n", {}, CLOUD, ""),
        (SETTINGS, f"[default]\napi_key = {KEY}\n", {}, CLOUD, "its settings"),
        ("work/wandb/settings", "[default]\nbase_url = https://w.org\n", {}, "w.org", ""),
        (SETTINGS, "no settings\n", {"WANDB_API_KEY": KEY}, CLOUD, "WANDB_API_KEY"),
    ],
)  # fmt: skip
def test_where_a_login_is(
    file: str, text: str, environ: dict[str, str], host: str, source: str, home: Path
) -> None:
    if file:
        put(home / file, text)
    given = {name: value.format(home=home) for name, value in environ.items()}
    assert login({"HOME": str(home), **given}) == (host, source.format(home=home))


def test_what_is_sent_to_a_server(home: Path) -> None:
    online, environ = Metrics(enable_wandb=True), {"HOME": str(home)}
    assert sends(online, environ)
    assert not sends(Metrics(wandb_mode="offline"), environ)
    assert not sends(online, {**environ, "WANDB_MODE": "disabled"})
    put(home / "work" / "wandb" / "settings", "[default]\nmode = offline\n")  # by `wandb offline`
    assert not sends(online, environ)
    assert sends(online, {**environ, "WANDB_MODE": "online"})


def test_a_run_without_a_login_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert forge.train.main(["metrics.enable_wandb=true"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "1 problem; nothing was started or written.",
        "  1. metrics.enable_wandb=true   [command line]",
        "     W&B has no login to api.wandb.ai here, so nothing would be logged there.",
        "     -> type wandb login, or metrics.wandb_mode=offline",
    ]
    assert list(Path().iterdir()) == []
