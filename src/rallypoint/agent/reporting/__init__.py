"""What an agent tells people and logs."""
