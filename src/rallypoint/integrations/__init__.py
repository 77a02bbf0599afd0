"""Rallypoint inside other programs: plug-ins for launchers, readers of schedulers' variables.

Everything here stands on the public API and nothing of the package imports it: launchers
and `rallypoint run` find it through entry points.
"""
