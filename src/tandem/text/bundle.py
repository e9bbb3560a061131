"""The text side of one model, built once."""
