"""Where metrics go: a file, the console, TensorBoard, Weights & Biases."""

from forge.training.trackers.build import build_trackers
from forge.training.trackers.group import Tracker, Trackers

__all__ = ["Tracker", "Trackers", "build_trackers"]
