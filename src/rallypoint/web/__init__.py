"""The live page, the JSON API and the metrics of a server (extra `web`). Read-only.

Runs in the server's own loop, so that it shows what is and not a copy; costs nothing while
nobody looks. `listener` starts it, `app` has the routes, `guard` says who may look.
"""
