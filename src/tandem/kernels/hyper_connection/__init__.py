"""Manifold-constrained hyper-connections (mHC): several residual streams, mixed around every sublayer."""
