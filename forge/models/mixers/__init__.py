"""Token mixers of hybrid models: Mamba-2 and gated short convolutions."""
