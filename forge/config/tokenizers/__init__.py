"""Sections of tokenizers, and readers of tokenizer files."""
