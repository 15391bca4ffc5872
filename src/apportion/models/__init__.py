"""Which models can be trained, and how it is known."""
