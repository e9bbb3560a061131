"""The sparse-attention indexer: pooled keys, scores of pools, and the choice of tokens to attend to."""
