"""The coordinator over a server."""
