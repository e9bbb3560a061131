"""Attention of grouped query heads over paged keys and values."""
