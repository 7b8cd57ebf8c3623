"""GGUF files, the model format of llama.cpp, as plain Hugging Face folders."""
