"""What an agent prints and logs."""
