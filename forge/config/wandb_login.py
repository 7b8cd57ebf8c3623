"""W&B's login, looked for where W&B looks; importing W&B would take seconds."""

from __future__ import annotations

import configparser
import netrc
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from forge.config.metrics import Metrics

NOT_SENT = ("offline", "dryrun", "disabled")
CLOUD = ("api.wandb.ai", "api.forge.coreweave.com")  # names of W&B's own server, by its version
KEYS = {"api_key": "WANDB_API_KEY", "identity_token_file": "WANDB_IDENTITY_TOKEN_FILE"}


class Login(NamedTuple):
    """The server of W&B, and the place of a login, if any."""

    host: str
    source: str = ""


def sends(section: Metrics, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a run is sent to a server; WANDB_MODE and `wandb offline` go before the section."""
    return section.wandb_mode == "online" and _setting("mode", environ) not in NOT_SENT


def login(environ: Mapping[str, str] = os.environ) -> Login:
    """Find a login: in a variable, the settings, or .netrc; the login's value is not read."""
    address = urlsplit(_setting("base_url", environ) or f"https://{CLOUD[0]}")
    host = address.hostname or ""
    for key, variable in KEYS.items():
        if _setting(key, environ):
            return Login(host, variable if environ.get(variable) else "its settings")
    file = Path(environ.get("NETRC") or _home(environ) / ".netrc").expanduser()
    with suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
        machines = netrc.netrc(str(file))
        names = {host, address.netloc, *(CLOUD if host in CLOUD else ())}
        return Login(host, str(file) if any(map(machines.authenticators, names)) else "")
    return Login(host)


def _setting(name: str, environ: Mapping[str, str]) -> str | None:
    """A setting of W&B: a variable, the local file of `wandb offline`, or the user's file."""
    if value := environ.get(f"WANDB_{name.upper()}"):
        return value
    folder = Path(
        environ.get("WANDB_CONFIG_DIR") or _home(environ) / ".config" / "wandb"
    ).expanduser()
    files = configparser.ConfigParser(interpolation=None)
    with suppress(configparser.Error, OSError, UnicodeDecodeError):  # W&B ignores such files too
        files.read([folder / "settings", Path("wandb", "settings")], encoding="utf-8")
    return files.get("default", name, fallback=None)


def _home(environ: Mapping[str, str]) -> Path:
    return Path(os.path.abspath(os.path.expanduser(environ.get("HOME", "~"))))
