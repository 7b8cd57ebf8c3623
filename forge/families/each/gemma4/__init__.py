"""Gemma 4, its text."""
