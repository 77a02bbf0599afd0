"""Durable state of a server: the journal contract, its homes, and the group commit."""
