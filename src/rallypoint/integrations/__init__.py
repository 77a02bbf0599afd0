"""Plug-ins for launchers (torchrun, TensorPlay), and readers of schedulers' variables.

Launchers and `rallypoint run` find them by entry points; no other package imports them.
"""
