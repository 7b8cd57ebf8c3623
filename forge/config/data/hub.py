"""The tokenizer of a model on the Hugging Face hub: in its cache, or fetched once."""

from __future__ import annotations

import functools

FILES = ("tokenizer_config.json", "tokenizer.json")
ABSENT = "it is not in the cache of Hugging Face, and the hub cannot be reached to fetch it"


@functools.cache  # rules and the points of a sweep ask for the same file
def fetch_tokenizer(name: str, revision: str) -> tuple[str, str]:
    """Fetch a model's tokenizer.json: (its path on this machine, "") or ("", the reason)."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    file_path, fault = "", ""
    for file in FILES:  # the first file is optional: the last result counts
        file_path, fault = "", ""
        try:
            cached = try_to_load_from_cache(name, file, revision=revision)
            if isinstance(cached, str):
                file_path = cached
            elif not reachable():
                fault = ABSENT
            else:
                file_path = hf_hub_download(name, file, revision=revision)
        except LocalEntryNotFoundError:
            fault = ABSENT
        except EntryNotFoundError:
            fault = f"it has no {file}"
        except Exception as error:  # the library raises its own, of many kinds
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            fault = (lines or [type(error).__name__])[0].rstrip(".")
    return file_path, fault


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
    endpoint = urllib.parse.urlsplit(constants.ENDPOINT)
    try:
        port = endpoint.port or (80 if endpoint.scheme == "http" else 443)
        socket.create_connection((endpoint.hostname, port), timeout=5).close()
    except OSError:
        return False
    return True
