"""Rollouts: completions by the trained model, their rewards, and the steps made of them."""
