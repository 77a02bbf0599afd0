"""The plug-in for torchrun: `torchrun --rdzv-backend rallypoint --rdzv-endpoint HOST:PORT`.

torch loads and calls each entry point of its group `torchrun.handlers` when its elastic package
is imported, and registers the result. torch itself is imported only with the first handler, as
an import error would otherwise be a warning in every torchrun.
"""

from typing import Any


def entry_point() -> Any:
    """Return the function that torch registers under the entry point's name."""
    return create_handler


def create_handler(params: Any) -> Any:
    """Make a handler for torch's RendezvousParameters (see `TorchrunHandler`)."""
    from rallypoint.integrations.torchrun.handler import TorchrunHandler

    return TorchrunHandler(params)
