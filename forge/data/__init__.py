"""Corpora, tokenizers, token shards, sample order and loaders."""

IGNORE_INDEX = -100
"""Target of a position that is not learned from and not counted."""
