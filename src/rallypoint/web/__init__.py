"""The live page, the JSON API and the metrics of a server (extra `web`). Read-only.

Runs in the server's event loop and reads its state directly; costs nothing without viewers.
`app` has the routes and the listener, `guard` checks access.
"""
