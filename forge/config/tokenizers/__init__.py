"""Sections of tokenizers, and the files that tokenizers are read from."""
