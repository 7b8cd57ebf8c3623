"""Hugging Face folders without torch: config.json to the model section and back, names, headers."""
