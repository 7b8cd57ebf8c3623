"""Sections of optimizers, a file each, imported by `forge.config.schemas`."""
