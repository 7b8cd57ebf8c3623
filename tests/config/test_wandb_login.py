"""A login of W&B is found where W&B finds it, and asked for before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

import forge.train
from forge.config.metrics import Metrics
from forge.config.wandb_login import login, sends

KEY = "0" * 40


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a place of work without anything of W&B."""
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
        ("", "", {}, "api.wandb.ai", ""),
        ("", "", {"WANDB_API_KEY": KEY}, "api.wandb.ai", "WANDB_API_KEY"),
        ("", "", {"WANDB_API_KEY": ""}, "api.wandb.ai", ""),
        ("", "", {"WANDB_IDENTITY_TOKEN_FILE": "jwt"}, "api.wandb.ai", "WANDB_IDENTITY_TOKEN_FILE"),
        (".netrc", f"machine api.wandb.ai\n  login user\n  password {KEY}\n", {}, "api.wandb.ai", "{home}/.netrc"),
        (".netrc", f"machine api.forge.coreweave.com login user password {KEY}\n", {}, "api.wandb.ai", "{home}/.netrc"),
        ("mine", f"machine api.wandb.ai password {KEY}\n", {"NETRC": "{home}/mine"}, "api.wandb.ai", "{home}/mine"),
        (".netrc", f"machine github.com login user password {KEY}\n", {}, "api.wandb.ai", ""),
        (".netrc", f"machine api.wandb.ai password {KEY}\n", {"WANDB_BASE_URL": "https://w.org"}, "w.org", ""),
        (".netrc", f"machine w.org:80 login user password {KEY}\n", {"WANDB_BASE_URL": "http://w.org:80"}, "w.org", "{home}/.netrc"),
        (".config/wandb/settings", f"[default]\napi_key = {KEY}\n", {}, "api.wandb.ai", "its settings"),
        (".config/wandb/settings", "[default]\nbase_url = https://w.org\n", {}, "w.org", ""),
        ("work/wandb/settings", "[default]\nbase_url = https://w.org\n", {}, "w.org", ""),
        ("else/settings", f"[default]\napi_key = {KEY}\n", {"WANDB_CONFIG_DIR": "{home}/else"}, "api.wandb.ai", "its settings"),
        (".config/wandb/settings", "no settings\n", {"WANDB_API_KEY": KEY}, "api.wandb.ai", "WANDB_API_KEY"),
    ],
)  # fmt: skip
def test_where_a_login_is(
    file: str, text: str, environ: dict[str, str], host: str, source: str, home: Path
) -> None:
    if file:
        put(home / file, text)
    found = login(
        {"HOME": str(home), **{name: value.format(home=home) for name, value in environ.items()}}
    )
    assert (found.host, found.source, found.fault) == (host, source.format(home=home), "")


def test_what_is_sent_to_a_server(home: Path) -> None:
    online, environ = Metrics(enable_wandb=True), {"HOME": str(home)}
    assert sends(online, environ)
    assert not sends(Metrics(wandb_mode="offline"), environ)
    assert not any(
        sends(online, {**environ, "WANDB_MODE": mode}) for mode in ("offline", "dryrun", "disabled")
    )
    put(
        home / "work" / "wandb" / "settings", "[default]\nmode = offline\n"
    )  # as `wandb offline` does
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


def test_a_file_that_cannot_be_read_is_named(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(home / ".netrc", "nonsense\n")
    assert forge.train.main(["metrics.enable_wandb=true"]) == 2
    said = f"W&B has no login to api.wandb.ai here ({home}/.netrc cannot be read: bad toplevel token 'nonsense' ("
    assert said in capsys.readouterr().err
