"""The workers' stdout and stderr."""
