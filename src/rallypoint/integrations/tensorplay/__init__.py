"""The plug-in for TensorPlay: `python -m rallypoint.integrations.tensorplay ...`.

TensorPlay registers the objects in its entry point group `tp.elastic.handlers`, where torch
registers what such an object returns. But its release 1.0.0 never calls the function that reads
this group. So running this package registers the handler, then runs TensorPlay's own launcher:

    python -m rallypoint.integrations.tensorplay --rdzv-backend rallypoint ...

With a release that reads the group, `python -m tensorplay.distributed.run` suffices.
docs/tensorplay.md compares the two APIs.
"""

from typing import Any

NAME = "rallypoint"


def create_handler(params: Any) -> Any:
    """Make a handler for TensorPlay's RendezvousParameters (see `TensorPlayHandler`)."""
    from rallypoint.integrations.tensorplay.handler import TensorPlayHandler

    return TensorPlayHandler(params)


def register() -> None:
    """Register `rallypoint` in this process; a second call has no effect."""
    from tensorplay.distributed.elastic.rendezvous import get_registry

    get_registry().register(NAME, create_handler)


def main() -> None:
    """Run TensorPlay's launcher with `rallypoint` among its backends."""
    register()
    from tensorplay.distributed import run

    run.main()
