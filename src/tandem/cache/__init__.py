"""Device storage of what layers keep: paged keys and values, latents, recurrent states."""
