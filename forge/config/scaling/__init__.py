"""Sections of scaling rules, a file each, imported by `forge.config.schemas`."""
