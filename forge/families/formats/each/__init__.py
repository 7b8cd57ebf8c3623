"""The formats of quantised weights, one file each."""
