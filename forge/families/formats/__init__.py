"""Quantised weights of Hugging Face folders, decoded in ranges of rows: one file a format."""
