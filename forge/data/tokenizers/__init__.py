"""Tokenizers, and the rendering of conversations as tokens."""
