"""The decisions of an agent. PURE."""
