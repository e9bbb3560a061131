"""Operators: one folder each, reference.py (plain torch) is the specification."""
