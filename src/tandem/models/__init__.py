"""Architectures: what a checkpoint is (``spec.py``, torch-free) and how it computes (``model.py``)."""
