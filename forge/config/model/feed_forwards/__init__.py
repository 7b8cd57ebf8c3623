"""The sections of feed-forward layers, one file each; `forge.config.schemas` imports them all."""
