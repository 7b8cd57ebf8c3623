"""From tokens to batches: order, packing, samples and the loader."""
