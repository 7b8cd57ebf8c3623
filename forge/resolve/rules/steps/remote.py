"""Rules of remote stores: where a run is copied to, and what is read from there."""

from __future__ import annotations

from forge.config.checkpoint import Checkpoint
from forge.config.places import ADDRESS, LIBRARIES, is_remote, missing_library
from forge.config.rule import Findings, rule

REMOTE = "checkpoint.remote"


@rule(REMOTE, REMOTE, "checkpoint.enabled")
def remote_store(checkpoint: Checkpoint) -> Findings:
    """checkpoint.remote is an address such as s3://bucket/runs, and copies checkpoints that are
    saved.
    """
    remote = checkpoint.remote
    if remote is None:
        return
    match, key = ADDRESS.match(remote), f"{REMOTE}={remote}"
    example = f"{REMOTE}=file:///mnt/storage/runs, s3://bucket/runs, gs://, hf:// or az://"
    if not is_remote(remote) or match is None or not match["rest"].strip("/"):
        names = ", ".join(f"{scheme}://" for scheme in LIBRARIES if scheme != "memory")
        yield key, f"it is no address of a store: these begin with {names}.", example
    elif match["scheme"] == "memory":
        yield key, "memory:// ends with its process, and nothing of it stays.", example
    elif library := missing_library(remote):
        yield key, f"it needs the library {library}, which is absent.", f"pip install {library}"
    if not checkpoint.enabled:
        yield REMOTE, "no checkpoint is saved.", f"{REMOTE}=null, or checkpoint.enabled=true"


def absence_of(address: str) -> tuple[str, str] | None:
    """(why nothing can be read at an address, what to do); None where something is there."""
    from forge.rundir.remote.local_copy import absence  # imported late: few runs name an address

    why, hint = absence(address)
    return (why, hint) if why else None
