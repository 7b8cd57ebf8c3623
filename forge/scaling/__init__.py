"""The verb `forge.scaling`: laws of loss over size and tokens, read from a sweep."""
