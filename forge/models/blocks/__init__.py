"""The blocks of a decoder, and the streams between them."""
