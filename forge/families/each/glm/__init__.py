"""Zhipu's GLM-4: dense, with experts, and with latent attention."""
