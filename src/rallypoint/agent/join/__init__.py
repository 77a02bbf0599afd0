"""Joining and leaving a run."""
