"""What is trained beside weights that stay as they are: see the `adapter` group."""
