"""Coordinate check: sizes of activations by width, in the first steps of training."""
