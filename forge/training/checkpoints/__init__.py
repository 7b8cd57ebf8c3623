"""Checkpoints: writing, restoring, and folders of Hugging Face and PEFT."""
