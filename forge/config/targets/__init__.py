"""Targets of `_target_` and their parameters, read without importing them."""
