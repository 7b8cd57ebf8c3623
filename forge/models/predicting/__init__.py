"""Predictions of tokens further ahead than the next."""
