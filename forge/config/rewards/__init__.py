"""Sections of rewards."""
