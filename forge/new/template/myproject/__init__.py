"""What this project adds to forge."""
