"""Sections of environments."""
