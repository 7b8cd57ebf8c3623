"""Ways around layers: tokens to values, embeddings to later layers, the middle to the end."""
