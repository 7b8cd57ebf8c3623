"""Replica groups by torchft: runs of their own that go on when one dies."""
