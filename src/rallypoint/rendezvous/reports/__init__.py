"""What a run is doing and has been through, for people and programs."""
