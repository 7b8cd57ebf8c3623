"""Tasks of evaluation: items, what a task asks of a model, and how answers are judged. No torch."""
