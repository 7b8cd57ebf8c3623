"""The sections of token mixers, one file each; `forge.config.schemas` imports them all."""
