"""Scoring of texts by a model: requests to log-probabilities and texts, equal on every layout."""
