"""Sequences cut over ranks: which part a rank has, and what mixers send of it."""
