"""Multi-head latent attention without position encoding, in its absorbed form."""
