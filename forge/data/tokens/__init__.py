"""Tokens on the disk: stores, shards, manifests and caches."""
