"""EXL3: weights as tail-biting trellis codes in tiles of 16 × 16, rotated by Hadamard-128 on both sides."""
