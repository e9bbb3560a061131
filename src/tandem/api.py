"""Composition root: the only place that builds rooms together."""
