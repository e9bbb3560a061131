"""Composition root: the only room that builds the others together.

Importing it loads no torch; ``load`` does, when a model is loaded.
"""

from tandem.api.service import LoadState, ModelCard, Phase, Service

__all__ = ["LoadState", "ModelCard", "Phase", "Service"]
