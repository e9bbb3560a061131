"""Tool-call formats: how a model writes calls, and how they are read back while they stream."""
