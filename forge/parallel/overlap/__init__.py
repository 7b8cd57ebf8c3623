"""Collectives of a layer beside the products of the layer."""
