"""The tokenizer of a model on the Hugging Face hub: in its cache, or fetched once."""

from __future__ import annotations

import functools

FILES = ("tokenizer_config.json", "tokenizer.json")
ABSENT = "it is not in the cache of Hugging Face, and the hub cannot be reached to fetch it"


@functools.cache  # rules and the points of a sweep ask for the same
def fetched(name: str, revision: str) -> tuple[str, str]:
    """(its tokenizer.json on this machine, "") or ("", why there is none)."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    found, fault = "", ""
    for file in FILES:  # what the first says of tokens need not be there
        found, fault = "", ""
        try:
            known = try_to_load_from_cache(name, file, revision=revision)
            if isinstance(known, str):
                found = known
            elif not reachable():
                fault = ABSENT
            else:
                found = hf_hub_download(name, file, revision=revision)
        except LocalEntryNotFoundError:
            fault = ABSENT
        except EntryNotFoundError:
            fault = f"it has no {file}"
        except Exception as error:  # the library raises its own, of many kinds
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            fault = (lines or [type(error).__name__])[0].rstrip(".")
    return found, fault


@functools.cache
def reachable() -> bool:
    """Whether a download may succeed: the library itself tries for most of a minute."""
    import socket
    import urllib.parse
    import urllib.request

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if urllib.request.getproxies():
        return True
    place = urllib.parse.urlsplit(constants.ENDPOINT)
    try:
        port = place.port or (80 if place.scheme == "http" else 443)
        socket.create_connection((place.hostname, port), timeout=5).close()
    except OSError:
        return False
    return True
