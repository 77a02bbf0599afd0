"""The server: one asyncio process, one port, any number of runs and their stores."""
