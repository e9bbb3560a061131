"""Rotary position embedding: frequencies, and the rotation of queries and keys."""
