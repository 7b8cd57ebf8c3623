"""Whether W&B has a login, looked for where W&B looks, without importing it, which takes seconds."""

from __future__ import annotations

import configparser
import netrc
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from forge.config.metrics import Metrics

NOT_SENT = ("offline", "dryrun", "disabled")
CLOUD = (
    "api.wandb.ai",
    "api.forge.coreweave.com",
)  # W&B's own server; the version decides which name is the default
KEYS = {"api_key": "WANDB_API_KEY", "identity_token_file": "WANDB_IDENTITY_TOKEN_FILE"}


@dataclass(frozen=True, kw_only=True)
class Login:
    """The server of W&B, and what has a login to it, if anything. fault: why a file cannot be read
    that may.
    """

    host: str
    source: str = ""
    fault: str = ""


def sends(section: Metrics, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a run is sent to a server: WANDB_MODE and `wandb offline` go before
    metrics.wandb_mode=online.
    """
    return section.wandb_mode == "online" and _setting("mode", environ) not in NOT_SENT


def login(environ: Mapping[str, str] = os.environ) -> Login:
    """Where a login is; its value is not looked at."""
    address = urlsplit(_setting("base_url", environ) or f"https://{CLOUD[0]}")
    host = address.hostname or ""
    for key, variable in KEYS.items():
        if _setting(key, environ):
            return Login(host=host, source=variable if environ.get(variable) else "its settings")
    file = Path(environ.get("NETRC") or _home(environ) / ".netrc").expanduser()
    try:
        machines = netrc.netrc(str(file))
    except FileNotFoundError:
        return Login(host=host)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError) as error:
        return Login(
            host=host, fault=f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"
        )
    known = any(
        machines.authenticators(name)
        for name in {host, address.netloc, *(CLOUD if host in CLOUD else ())}
    )
    return Login(host=host, source=str(file) if known else "")


def _setting(name: str, environ: Mapping[str, str]) -> str | None:
    """A setting of W&B: of a variable, else of the file that `wandb offline` writes here, else of
    the user's own.
    """
    if value := environ.get(f"WANDB_{name.upper()}"):
        return value
    own = Path(environ.get("WANDB_CONFIG_DIR") or _home(environ) / ".config" / "wandb").expanduser()
    files = configparser.ConfigParser(interpolation=None)
    with suppress(
        configparser.Error, OSError, UnicodeDecodeError
    ):  # W&B passes over such a file too
        files.read([own / "settings", Path("wandb", "settings")], encoding="utf-8")
    return files.get("default", name, fallback=None)


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME", "~")).expanduser()
