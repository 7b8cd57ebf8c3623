"""Documents: corpora, files and rows, messages, fingerprints."""
