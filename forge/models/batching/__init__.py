"""Batches of texts in progress, which texts join and leave."""
