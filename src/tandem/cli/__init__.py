"""The ``tandem`` command: parses, calls, prints. Importing it loads neither torch nor the server."""
