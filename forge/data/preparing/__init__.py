"""From text to tokens on the disk: splitting, deduplication, encoding in processes."""
