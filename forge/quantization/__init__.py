"""Matrix products in numbers of few bits, by torchao on a GPU, emulated anywhere."""
