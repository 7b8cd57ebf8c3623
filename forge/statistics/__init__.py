"""Intervals and tests over items, seeds and both; and what an experiment can show before it runs.

Torch-free. Every function takes plain numbers, and names the source of its formula.
"""
