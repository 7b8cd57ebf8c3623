"""Functions shared by tests of several folders."""
