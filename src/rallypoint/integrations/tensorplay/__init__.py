"""The plug-in for TensorPlay: `python -m rallypoint.integrations.tensorplay ...`.

TensorPlay has an entry point group for handlers, `tp.elastic.handlers`, and registers the
loaded object itself, where torch registers what the loaded object returns. Its release 1.0.0
however never looks into that group: the function that would is called by nobody. So running
this package is TensorPlay's own launcher, with its own options, after that look:

    python -m rallypoint.integrations.tensorplay --rdzv-backend rallypoint ...

A release that looks for itself needs no more than `python -m tensorplay.distributed.run`.
docs/tensorplay.md compares the two APIs.
"""

from typing import Any

NAME = "rallypoint"


def create_handler(params: Any) -> Any:
    """Make a handler for TensorPlay's RendezvousParameters (see `TensorPlayHandler`)."""
    from rallypoint.integrations.tensorplay.handler import TensorPlayHandler

    return TensorPlayHandler(params)


def register() -> None:
    """Make `rallypoint` known in this process; doing so again changes nothing."""
    from tensorplay.distributed.elastic.rendezvous import get_registry

    get_registry().register(NAME, create_handler)


def main() -> None:
    """Run TensorPlay's launcher with `rallypoint` among its backends."""
    register()
    from tensorplay.distributed import run

    run.main()
