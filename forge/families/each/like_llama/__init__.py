"""Llama with a few options changed: dense models, and their relatives with experts."""
