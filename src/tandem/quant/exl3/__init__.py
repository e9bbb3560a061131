"""EXL3 checkpoints: reading, checking and multiplying."""
