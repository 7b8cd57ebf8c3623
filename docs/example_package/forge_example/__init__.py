"""A package of the user's own, as an example: docs/extending.md of forge walks through it."""
