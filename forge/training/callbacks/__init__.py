"""Callbacks of forge: saving, stopping, metrics, evaluation, samples, profiling."""
