"""Model files: where they are, whether they are whole, and their tensors by name."""
