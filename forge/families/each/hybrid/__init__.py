"""Families whose layers are of several kinds: state spaces or convolutions beside attention."""
