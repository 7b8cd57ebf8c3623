"""Ways around layers, as in nanochat: tokens to values, embeddings to later layers."""
