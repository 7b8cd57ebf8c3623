"""Sources of text by kind: folders, datasets of the hub, conversations, pairs and preferences."""
