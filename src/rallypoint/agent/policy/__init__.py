"""What an agent decides. PURE."""
