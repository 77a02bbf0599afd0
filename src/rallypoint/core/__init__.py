"""The state machine of a run, as pure functions of values (see `advance`).

No socket, thread, clock, random number, environment or log call in this folder.
"""
