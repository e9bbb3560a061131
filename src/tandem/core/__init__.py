"""Frozen data, protocols, errors and settings that pass between rooms. Standard library only."""
