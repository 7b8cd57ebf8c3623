"""Weights of Hugging Face folders: into what each rank owns, and out of a checkpoint."""
