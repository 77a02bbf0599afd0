"""This node's worker processes."""
