"""Uploads of a Hugging Face or PEFT folder to the hub."""

from __future__ import annotations

from pathlib import Path

LOGIN = "log in with `hf auth login`, or set HF_TOKEN to a token that may write"


def check_push(name: str) -> str:
    """Return the account for uploads to a model of this id.

    Raises ValueError before any write without an account.
    """
    from huggingface_hub import HfApi

    from forge.families.download import ID, reachable

    if ID.fullmatch(name) is None:
        raise ValueError(f"--push {name}: it is the id of a model on the hub, ORG/NAME")
    if not reachable():
        raise ValueError(f"--push {name}: the hub cannot be reached; leave --push out")
    try:
        return str(HfApi().whoami()["name"])
    except Exception as error:  # the library raises many kinds of errors
        raise ValueError(f"--push {name}: the hub knows no login here; {LOGIN}") from error


def push(folder: Path, name: str, *, public: bool) -> str:
    """Upload a folder into the model of this id, created if missing; return its address.

    public: whether others see a created model. Raises ValueError with the answer of the hub.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(name, private=not public, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Export of forge")
    except Exception as error:  # the library raises many kinds of errors
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = (lines or [type(error).__name__])[0].rstrip(".")
        hint = f"check that this login may write there; {folder} is whole, and is uploaded again by"
        raise ValueError(f"--push {name}: {reason}; {hint} `hf upload {name} {folder}`") from error
    return f"{api.endpoint}/{name}"
