"""Sections of objectives."""
