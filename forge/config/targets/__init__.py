"""What a `_target_` may name, and the parameters of what it names, without importing it."""
