"""Matrix products of activations with dense or quantized weights."""
