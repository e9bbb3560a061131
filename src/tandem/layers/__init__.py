"""Building blocks of models: linear, norm, attention, MLP, embedding."""
