"""A family a file; to be imported is to be known."""
