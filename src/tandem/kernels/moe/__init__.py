"""Mixture of experts: routing and the clamped gate."""
