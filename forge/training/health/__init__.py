"""Checks of a start that cost next to nothing, made by every run."""
