"""The coordinator without a server, over a `RendezvousBackend`."""
