"""A server of a trained model: OpenAI's paths, and a page to talk to it."""
