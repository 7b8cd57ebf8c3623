"""Sections of models: the decoder, its options, its mixers, feed-forward layers and experts."""
