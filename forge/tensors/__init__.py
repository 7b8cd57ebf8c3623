"""Helpers for tensors laid out over ranks, in 16 bits, or random by counter."""
