"""Tandem serves very large mixture-of-experts models from the memory of two ordinary cards.

The rooms of the package, and what each may import, are described in ``docs/architecture.md``.
"""

__version__ = "0.1.0"
