"""Trackers that a run opens when it is told to: `+tracker=csv`, `+tracker=mlflow`, ..."""
