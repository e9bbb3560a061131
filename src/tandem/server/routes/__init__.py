"""One module a group of routes; each has ``router(context)``."""
