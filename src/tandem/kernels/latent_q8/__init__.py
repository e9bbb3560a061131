"""Latents in 8 bits: rotated by Hadamard-32, then one scale for every 32 values."""
