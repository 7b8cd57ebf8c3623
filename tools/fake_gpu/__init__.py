"""A CUDA runtime without a GPU: bytes, launches, waits and the choice of kernels are real."""
