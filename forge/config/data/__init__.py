"""Sections of data: text, conversations, mixtures and sets of evaluation."""
