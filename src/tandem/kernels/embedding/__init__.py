"""Rows of a token embedding table."""
