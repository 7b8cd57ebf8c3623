"""The sections of optimizers, one file each; `forge.config.schemas` imports them all."""
