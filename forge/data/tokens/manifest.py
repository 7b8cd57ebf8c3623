"""Manifest of prepared data: identity, counts, and the hashes of the files beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forge.config.regular import read_json
from forge.data.text.fingerprint import hash_file, hash_json
from forge.data.tokens.shards import BrokenStore, damage_of

MANIFEST_FILE = "manifest.json"


def read_manifest(entry: Path) -> dict[str, Any]:
    """Read the manifest of an entry. BrokenStore: a file is missing, damaged or changed."""
    with damage_of(MANIFEST_FILE):
        content = read_json(entry / MANIFEST_FILE)
        manifest: dict[str, Any] = content["manifest"]
        digests = {MANIFEST_FILE: (hash_json(manifest), content["sha256"])}
        for name, expected in manifest["sha256"].items():
            with damage_of(name):
                digests[name] = hash_file(entry / name), expected
        for name, (digest, expected) in digests.items():
            if digest != expected:
                raise BrokenStore(f"{name} does not have the content that was written")
    return manifest


def write_manifest(entry: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest of an entry. manifest["sha256"]: of files, by path below the entry."""
    content = {"manifest": manifest, "sha256": hash_json(manifest)}
    (entry / MANIFEST_FILE).write_text(json.dumps(content, indent=2))
