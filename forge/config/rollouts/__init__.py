"""Sections of rollouts."""
