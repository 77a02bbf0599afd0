"""Running the server of a run on this machine: who does it, and how the server is started."""
