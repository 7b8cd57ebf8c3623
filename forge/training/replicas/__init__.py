"""Replica groups by torchft: runs of their own that continue when one dies."""
