"""Bytes of everything, and where they go: decided before anything is loaded. No torch."""
